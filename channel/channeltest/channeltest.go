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
// A test that fails prints the rule that was broken, as package channel states it. No test sleeps
// or measures time. A test in which a call stays blocked fails after Backend.Timeout, and its
// connections are closed. The race detector finds channels that use memory after done.
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

	// Strict makes the tests see wrong bytes if one call of a device's driver is
	// missing. It is nil by default, because it takes time.
	Strict *Strict

	// Timeout is the time limit of each test; zero stands for one minute.
	Timeout time.Duration

	native     bool // run in the native dialect
	oneSession bool // with native: host memory moves over a stream of the session
}

// Strict makes tests copy only from and to memory of AllocHost of a kind that has this method, and use the
// memory of transfers on its stream before and after them.
type Strict struct {
	// LateSource and LateTarget are how often memory of a Send and of a Recv is
	// overwritten before it.
	LateSource, LateTarget int
}

// inNative returns a copy of b that makes tests run in the native dialect. SkipsAborted is true in
// it, because in that dialect an aborted transfer never closes the channel.
func (b Backend) inNative() Backend {
	b.native, b.SkipsAborted = true, true
	return b
}

// withTimeout returns a copy of b for the test t, and starts a timer. If t is not over after
// b.Timeout, or after one minute if that is 0, t fails, and all connections that the copy's Connect
// has returned are closed, so that blocked calls return.
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

// Over returns a Connect that listens on addr with tr, dials that listener, and closes it again. It
// fails the test if a connection cannot be opened.
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
	rule string // the tested rule: an identifier of package channel, ": ", and sentences of its comment
	test func(t *testing.T, b Backend)
}

// check runs the test of c on b. If it fails, check prints the rule.
func (c testCase) check(t *testing.T, b Backend) {
	printRule(t, c.rule)
	c.test(t, b.withTimeout(t))
}

// printRule prints rule at the end of the test t if t has failed.
func printRule(t *testing.T, rule string) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("the rule that was broken, of package channel: " + rule)
		}
	})
}

// Run runs all tests of the suite for b as subtests of t, in both dialects. The names of the native
// tests begin with Native. It skips t if the channel is not viable, and the native tests if the
// connections cannot carry sessions.
func Run(t *testing.T, b Backend) {
	if err := b.New(t).Viable(); err != nil {
		t.Skip(err)
	}
	run(t, b)
	runOptional(t, b)
	RunNative(t, b)
}

// RunNative runs the tests of the native dialect for b, in a subtest of t with the name Native. It
// skips that subtest if the connections cannot carry sessions. It does not check that the channel
// is viable.
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

// runTransfers runs the tests of transfers, aborts, closing and the loss of the peer: those whose
// path depends on how host memory moves.
func runTransfers(t *testing.T, b Backend) {
	runGroup(t, b, "Transfer", transferCases)
	runGroup(t, b, "Abort", abortCases)
	runGroup(t, b, "Close", closeCases)
	runGroup(t, b, "PeerLoss", peerLossCases)
}

// runInOneSession runs the tests of runTransfers and the nativeCases in the native dialect, with
// host memory moving over a stream of the session instead of another connection.
func runInOneSession(t *testing.T, b Backend) {
	b.oneSession = true
	t.Run("OneSession", func(t *testing.T) {
		runTransfers(t, b)
		runGroup(t, b, "Ids", nativeCases)
	})
}

func runGroup(t *testing.T, b Backend, name string, cases []testCase) {
	for _, c := range cases {
		t.Run(name+"/"+c.name, func(t *testing.T) { c.check(t, b) })
	}
}
