// Package channeltest is the conformance suite of package channel: what the
// comments there promise, as tests that every implementation passes.
//
// An implementation runs it from one of its own tests, once for each transport
// that matters:
//
//	func TestParity(t *testing.T) {
//		channeltest.Run(t, channeltest.Backend{
//			Name:    "mine",
//			New:     func(t *testing.T) channel.Factory { return mine.New() },
//			Connect: channeltest.Over(mem.New(nil), ""),
//		})
//	}
//
// With device kinds that have streams it also tests that transfers keep to the
// order of the streams; package delayed is such a kind for machines without
// devices.
//
// All of it is done in both dialects. For the native one the suite plays the
// pipe: the channel's connections are streams of a session, which a connection of
// the Backend became; host memory is moved by package bulk, over another stream
// of that session or, with transports of which sessions are not made for it, over
// one more connection, and then once more over a stream, as in a pipe that does
// not get that connection. A transfer is aborted at one end soon after the other
// end did.
//
// Nothing sleeps and nothing is timed. A test with a call that stays blocked
// where it must not fails within a minute, and its connections are closed.
// Run it with the race detector, which sees a channel that touches memory after
// it said done.
package channeltest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Backend is the implementation under test.
type Backend struct {
	// Name of the implementation, for the names of the parity cases.
	Name string

	// New returns a factory. It is called for each end on its own; all
	// factories that it returns can communicate with each other.
	New func(t *testing.T) channel.Factory

	// Connect returns both ends of a new connection; see [Over].
	Connect Connect

	// Kinds are the kinds of the devices that the channel serves; cpu need not
	// be listed. If one of them has streams, a channel that serves cpu is
	// tested with host memory that is valid on such streams too.
	Kinds []device.Kind

	// Hold stops a stream of one of Kinds: work enqueued later waits until
	// release is called. Nil leaves out the tests of streams.
	Hold func(s device.Stream) (release func())

	// SkipsAborted says that the wire form of the compatible dialect can leave
	// out a transfer, so that aborting one does not close the channel.
	SkipsAborted bool

	// TrustsCompletions says that in the compatible dialect an empty frame on the
	// second connection is the peer's word that it has taken a tensor, which the
	// sender has no means to check.
	TrustsCompletions bool

	// Patience bounds each test; zero stands for one minute.
	Patience time.Duration

	native     bool // the dialect
	oneSession bool // that is native, with no connection besides
}

// inNative returns b for the native dialect, where every channel skips what was
// aborted.
func (b Backend) inNative() Backend {
	b.native, b.SkipsAborted = true, true
	return b
}

// watched returns b for the one test t: when the test takes longer than
// b.Patience, it fails, and all connections that it has are closed.
func (b Backend) watched(t *testing.T) Backend {
	dog := patience.Watch(t, b.Patience)
	open := b.Connect
	b.Connect = func(t testing.TB) (connect, listen transport.Conn) {
		connect, listen = open(t)
		dog.Guard(connect)
		dog.Guard(listen)
		return connect, listen
	}
	return b
}

// Connect returns both ends of a new connection, closed with the test or
// benchmark.
type Connect func(t testing.TB) (connect, listen transport.Conn)

// Over connects through tr, with listeners on addr.
func Over(tr transport.Transport, addr string) Connect {
	return func(t testing.TB) (connect, listen transport.Conn) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience.Limit)
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

// Run tests b in both dialects, in the native one with names that begin with
// Native. It skips all tests, with the reason, where the channel is not viable,
// and those of the native dialect where Connect's connections do not become
// sessions.
func Run(t *testing.T, b Backend) {
	if err := b.New(t).Viable(); err != nil {
		t.Skip(err)
	}
	run(t, b)
	runPowers(t, b)
	t.Run("Native", func(t *testing.T) {
		conn, _ := b.Connect(t)
		if _, ok := conn.(transport.Multiplexer); !ok {
			t.Skip("the transport has no sessions")
		}
		run(t, b.inNative())
		runGroup(t, b.inNative(), "Ids", nativeCases)
		if !carriesBulk(t, b.Connect) {
			runInOneSession(t, b.inNative())
		}
	})
}

func run(t *testing.T, b Backend) {
	runParity(t, b)
	runGroup(t, b, "Factory", factoryCases)
	runMoving(t, b)
	runGroup(t, b, "Hostile", hostileCases)
	runStreams(t, b)
}

// runMoving runs the cases for which it matters how host memory moves.
func runMoving(t *testing.T, b Backend) {
	runGroup(t, b, "Transfer", transferCases)
	runGroup(t, b, "Abort", abortCases)
	runGroup(t, b, "Close", closeCases)
	runGroup(t, b, "Death", deathCases)
}

// runInOneSession runs them with all that a pipe has in one session.
func runInOneSession(t *testing.T, b Backend) {
	b.oneSession = true
	t.Run("OneSession", func(t *testing.T) {
		runMoving(t, b)
		runGroup(t, b, "Ids", nativeCases)
	})
}

func runGroup(t *testing.T, b Backend, name string, cases []testCase) {
	for _, c := range cases {
		t.Run(name+"/"+c.name, func(t *testing.T) { c.test(t, b.watched(t)) })
	}
}
