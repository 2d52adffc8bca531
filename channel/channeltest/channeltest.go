// Package channeltest is the conformance suite of package channel: it tests that an implementation
// keeps the contracts that the comments there state.
//
// An implementation runs it from one of its own tests, once for each relevant transport:
//
//	func TestParity(t *testing.T) {
//		channeltest.Run(t, channeltest.Backend{
//			Name:    "mine",
//			New:     func(t *testing.T) channel.Factory { return mine.New() },
//			Connect: channeltest.Over(mem.New(nil), ""),
//		})
//	}
//
// For device kinds with streams it also tests that transfers keep the order of the streams. Package
// delayed is such a kind for machines without devices.
//
// The suite runs in both dialects. In the native dialect it does the work of the pipe. The
// channel's connections are streams of a session on one of the Backend's connections. Host memory
// moves through package bulk: over a stream of the session, if the session has one for that, else
// over another connection, and in that case once more over a plain stream, as in a pipe whose bulk
// connection failed. A transfer that one end aborts is soon aborted at the other end.
//
// No test sleeps or measures time. A test in which a call stays blocked fails after a minute, and
// its connections are closed. The race detector finds channels that use memory after done.
package channeltest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Backend is the implementation under test.
type Backend struct {
	// Name of the implementation, used in the names of the parity cases.
	Name string

	// New returns a factory. It is called once for each end. All factories
	// that it returns can communicate with each other.
	New func(t *testing.T) channel.Factory

	// Connect returns both ends of a new connection; see [Over].
	Connect Connect

	// Kinds are the device kinds that the channel serves; cpu need not be
	// listed. If one of them has streams, a channel that serves cpu is also
	// tested with host memory that is valid on such a stream.
	Kinds []device.Kind

	// Hold stops a stream of one of Kinds: work enqueued later waits until
	// release is called. If it is nil, tests of streams are skipped.
	Hold func(s device.Stream) (release func())

	// SkipsAborted is set if an aborted transfer does not close the channel in
	// the compatible dialect, because the wire format can omit a transfer.
	SkipsAborted bool

	// TrustsCompletions is set if in the compatible dialect an empty frame on the
	// second connection confirms that the peer has copied a tensor. The sender
	// cannot verify such a frame.
	TrustsCompletions bool

	// Timeout is the time limit of each test; zero stands for one minute.
	Timeout time.Duration

	native     bool // run in the native dialect
	oneSession bool // with native: host memory moves over a stream of the session
}

// inNative returns b for the native dialect, in which every channel skips aborted transfers.
func (b Backend) inNative() Backend {
	b.native, b.SkipsAborted = true, true
	return b
}

// withTimeout returns b for the test t. If the test takes longer than b.Timeout, it fails, and all
// its connections are closed.
func (b Backend) withTimeout(t *testing.T) Backend {
	watchdog := testwait.Watch(t, b.Timeout)
	open := b.Connect
	b.Connect = func(t testing.TB) (connect, listen transport.Conn) {
		connect, listen = open(t)
		watchdog.CloseOnTimeout(connect)
		watchdog.CloseOnTimeout(listen)
		return connect, listen
	}
	return b
}

// Connect returns both ends of a new connection, which are closed at the end of the test or
// benchmark.
type Connect func(t testing.TB) (connect, listen transport.Conn)

// Over returns a Connect for connections of tr, with listeners on addr.
func Over(tr transport.Transport, addr string) Connect {
	return func(t testing.TB) (connect, listen transport.Conn) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
		defer cancel()
		l, err := tr.Listen(ctx, addr)
		require.NoError(t, err)
		defer l.Close()
		connect, err = tr.Dial(ctx, l.Addr())
		require.NoError(t, err)
		listen, err = l.Accept(ctx)
		require.NoError(t, err)
		t.Cleanup(func() { connect.Close(); listen.Close() })
		return connect, listen
	}
}

// testCase is one test.
type testCase struct {
	name string
	test func(t *testing.T, b Backend)
}

// Run tests b in both dialects. The names of the native tests begin with Native. It skips all tests
// where the channel is not viable, and the native ones where the transport has no sessions.
func Run(t *testing.T, b Backend) {
	if err := b.New(t).Viable(); err != nil {
		t.Skip(err)
	}
	run(t, b)
	runOptional(t, b)
	RunNative(t, b)
}

// RunNative tests b in the native dialect only, as Run does.
func RunNative(t *testing.T, b Backend) {
	t.Run("Native", func(t *testing.T) {
		conn, _ := b.Connect(t)
		if _, ok := conn.(transport.Multiplexer); !ok {
			t.Skip("the transport has no sessions")
		}
		run(t, b.inNative())
		runGroup(t, b.inNative(), "Ids", nativeCases)
		if !carriesBulk(t, b) {
			runInOneSession(t, b.inNative())
		}
	})
}

func run(t *testing.T, b Backend) {
	runParity(t, b)
	runGroup(t, b, "Factory", factoryCases)
	runTransfers(t, b)
	runGroup(t, b, "Hostile", hostileCases)
	runStreams(t, b)
}

// runTransfers runs the cases that depend on how host memory moves.
func runTransfers(t *testing.T, b Backend) {
	runGroup(t, b, "Transfer", transferCases)
	runGroup(t, b, "Abort", abortCases)
	runGroup(t, b, "Close", closeCases)
	runGroup(t, b, "PeerLoss", peerLossCases)
}

// runInOneSession runs them with host memory moving over a stream of the session.
func runInOneSession(t *testing.T, b Backend) {
	b.oneSession = true
	t.Run("OneSession", func(t *testing.T) {
		runTransfers(t, b)
		runGroup(t, b, "Ids", nativeCases)
	})
}

func runGroup(t *testing.T, b Backend, name string, cases []testCase) {
	for _, c := range cases {
		t.Run(name+"/"+c.name, func(t *testing.T) { c.test(t, b.withTimeout(t)) })
	}
}
