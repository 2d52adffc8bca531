package transporttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// sessionCases are the tests of the session of a transport.Multiplexer.
var sessionCases = []testCase{
	{"AfterFrames", "Multiplexer.Multiplex: Multiplex turns the connection into a session, from the next byte on in both directions.", sessionAfterFrames},
	{"Prepared", "Multiplexer.PrepareSession: Each passes the SessionConfig that it then passes to Multiplex; MaxStreams must be the same at both ends.", sessionPrepared},
	{"Bulk", "Session.OpenBulk: The error matches ErrNotSupported if the session has no such streams, at both ends.", sessionBulk},
	{"Order", "Session.Open: It does not wait for the peer, whose Accept returns streams in the order in which they were opened.", sessionOrder},
	{"ManyStreams", "SessionConfig.MaxStreams: MaxStreams bounds the number of streams that the peer may have open at once.", sessionManyStreams},
	{"Limit", "SessionConfig.MaxStreams: Further ones are reset: their calls fail, and the session goes on.", sessionLimit},
	{"Window", "SessionConfig.Window: Window bounds the bytes of one stream that were sent and not read, and so the memory that a stream takes at the reading end.", sessionWindow},
	{"Budget", "SessionConfig.Budget: The charge is released when the stream or the session is closed, or before.", sessionBudget},
	{"AcceptBlocks", "Session.Accept: A call that fails takes no stream.", sessionAcceptWaits},
	{"TryWrite", "Stream.TryWrite: TryWrite writes the pieces in order as far as it can without blocking, and returns the number of bytes written, possibly 0.", onStreams(tryWriteThenRead)},
	{"CloseWriteThenRead", "Stream.CloseWrite: CloseWrite closes the writing half: the peer reads the bytes written before, then io.EOF. Reading goes on. Later writes return an error that matches ErrClosed.", onStreams(closeWriteThenRead)},
	{"CloseStreamDuringRead", "Stream: After Close, calls in progress and later ones return an error that matches ErrClosed.", onStreams(func(t *testing.T, one, _ transport.Stream) { closeDuringRead(t, one) })},
	{"CloseStreamDuringWrite", "Stream: After Close, calls in progress and later ones return an error that matches ErrClosed.", onStreams(closeDuringStreamWrite)},
	{"PeerClosesStream", "Stream: A peer that closes causes other errors.", onStreams(peerClosesStream)},
	{"ReadDeadlines", "Stream: A deadline interrupts a blocked call with an error whose Timeout method returns true, and loses no bytes.", onStreams(readDeadlines)},
	{"WriteDeadlines", "Stream: A deadline interrupts a blocked call with an error whose Timeout method returns true, and loses no bytes.", onStreams(writeDeadlines)},
	{"BothWaysAtOnce", "Stream: Stream is an ordered stream of bytes between two processes: a net.Conn that can be written without blocking, and whose writing half can be closed.", onStreams(exchange)},
	{"NetConn", "Stream: It keeps the contract of net.Conn, as golang.org/x/net/nettest.TestConn checks it, and io.EOF is not wrapped.", sessionNetConn},
	{"Close", "Session.Done: Err returns nil before that, and then the reason: ErrClosed if this end has closed the session, io.EOF if the peer has closed it or the connection between two messages, and otherwise the failure of the connection or the peer's violation of the protocol.", sessionClose},
	{"CloseByPeer", "Session.Done: Err returns nil before that, and then the reason: ErrClosed if this end has closed the session, io.EOF if the peer has closed it or the connection between two messages, and otherwise the failure of the connection or the peer's violation of the protocol.", sessionPeerCloses},
	{"CloseOfConn", "Multiplexer.Multiplex: The Conn may then be used as after Stream; closing it closes the session.", sessionConnCloses},
	{"CloseFromManyGoroutines", "Session: Its methods may be called concurrently.", sessionCloseFromMany},
	{"BufferedDataAfterClose", "Session.Done: Streams and bytes that have arrived can still be accepted and read, unless this end has closed the session.", sessionBufferedDataAfterClose},
}

// limits is the configuration of the sessions.
var limits = transport.SessionConfig{MaxStreams: 5, Window: 256 << 10}

// multiplex makes c, which must implement transport.Multiplexer, a session with the configuration
// cfg and returns the session, which is closed at the end of the test. An error ends the test.
func multiplex(t *testing.T, c transport.Conn, cfg transport.SessionConfig) transport.Session {
	t.Helper()
	s, err := c.(transport.Multiplexer).Multiplex(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// sessions opens a connection and returns the sessions at its two ends, which are closed at the end
// of the test. Both have the configuration cfg, except that Client is true for client only.
func (b Backend) sessions(t *testing.T, cfg transport.SessionConfig) (client, server transport.Session) {
	t.Helper()
	d, a := b.connect(t)
	server = multiplex(t, a, cfg)
	cfg.Client = true
	return multiplex(t, d, cfg), server
}

// open opens a stream on the session from and accepts one on the session to, and returns both ends.
// An error ends the test.
func open(t *testing.T, from, to transport.Session) (opened, accepted transport.Stream) {
	t.Helper()
	opened, err := from.Open()
	require.NoError(t, err)
	return opened, acceptStream(t, to)
}

func acceptStream(t *testing.T, s transport.Session) transport.Stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	st, err := s.Accept(ctx)
	require.NoError(t, err)
	return st
}

// onStreams returns a test that opens a session and calls test four times with the two ends of a
// new stream: for a stream opened by the client and for one opened by the server, with the opening
// end as the parameter one and then as the parameter other.
func onStreams(test func(t *testing.T, one, other transport.Stream)) func(*testing.T, Backend) {
	return func(t *testing.T, b Backend) {
		client, server := b.sessions(t, limits)
		for _, direction := range [][2]transport.Session{{client, server}, {server, client}} {
			opened, accepted := open(t, direction[0], direction[1])
			test(t, opened, accepted)
			opened, accepted = open(t, direction[0], direction[1])
			test(t, accepted, opened)
		}
	}
}

// sessionPrepared checks that PrepareSession succeeds at both ends, that the connection still
// carries frames between the two calls, and that the session then carries a stream.
func sessionPrepared(t *testing.T, b Backend) {
	d, a := b.connect(t)
	servers, clients := limits, limits
	clients.Client = true
	require.NoError(t, a.(transport.Multiplexer).PrepareSession(servers))
	require.NoError(t, a.WriteFrames(text("prepared")))
	wantFrame(t, d, []byte("prepared"))
	require.NoError(t, d.(transport.Multiplexer).PrepareSession(clients))
	client, server := multiplex(t, d, clients), multiplex(t, a, servers)
	opened, accepted := open(t, client, server)
	write(t, opened, "hello")
	wantBytes(t, accepted, "hello")
}

// sessionBulk opens a stream with OpenBulk at the client, and checks that the stream carries data
// in both directions. If the error of this OpenBulk matches ErrNotSupported, sessionBulk checks
// instead that the error of OpenBulk at the server matches ErrNotSupported too.
func sessionBulk(t *testing.T, b Backend) {
	client, server := b.sessions(t, limits)
	opened, err := client.OpenBulk()
	if errors.Is(err, transport.ErrNotSupported) {
		_, err = server.OpenBulk()
		require.ErrorIs(t, err, transport.ErrNotSupported, "at one end only")
		return
	}
	require.NoError(t, err)
	accepted := acceptStream(t, server)
	exchange(t, opened, accepted)
}

// sessionAfterFrames checks that the client can start a session and write to a stream before the
// server has read the frames that were written earlier. The server then reads these frames, starts
// its session, and exchanges data on the stream, which must have the remote address of its
// connection.
func sessionAfterFrames(t *testing.T, b Backend) {
	d, a := b.connect(t)
	require.NoError(t, d.WriteFrames(text("one"), text("two")))
	client := multiplex(t, d, transport.SessionConfig{MaxStreams: 1, Client: true})
	opened, err := client.Open()
	require.NoError(t, err)
	write(t, opened, "after the frames")

	wantFrame(t, a, []byte("one"))
	wantFrame(t, a, []byte("two"))
	server := multiplex(t, a, transport.SessionConfig{MaxStreams: 1})
	accepted := acceptStream(t, server)
	wantBytes(t, accepted, "after the frames")
	write(t, accepted, "reply")
	wantBytes(t, opened, "reply")
	require.Equal(t, a.RemoteAddr(), accepted.RemoteAddr().String())
}

func sessionOrder(t *testing.T, b Backend) {
	client, server := b.sessions(t, limits)
	for _, direction := range [][2]transport.Session{{client, server}, {server, client}} {
		for i := range limits.MaxStreams {
			st, err := direction[0].Open()
			require.NoError(t, err)
			write(t, st, fmt.Sprint(i))
		}
		for i := range limits.MaxStreams {
			wantBytes(t, acceptStream(t, direction[1]), fmt.Sprint(i))
		}
	}
}

// sessionManyStreams checks that each end can have MaxStreams streams open at once, and that all of
// them carry data in both directions concurrently.
func sessionManyStreams(t *testing.T, b Backend) {
	many := race.Pick(100, 20)
	client, server := b.sessions(t, transport.SessionConfig{MaxStreams: many})
	var pairs [][2]transport.Stream
	for _, direction := range [][2]transport.Session{{client, server}, {server, client}} {
		for range many {
			opened, accepted := open(t, direction[0], direction[1])
			pairs = append(pairs, [2]transport.Stream{opened, accepted})
		}
	}
	var users sync.WaitGroup
	errs := make(chan error, 2*len(pairs))
	for _, pair := range pairs {
		opened, accepted := pair[0], pair[1]
		users.Go(func() {
			_, err := io.Copy(accepted, accepted)
			errs <- err
		})
		users.Go(func() { errs <- echoRandom(opened) })
	}
	users.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
}

// echoRandom writes 100,000 random bytes to s and closes its writing half, while it reads the echo.
// It returns nil if the echo is equal, and otherwise an error, also one of s.
func echoRandom(s transport.Stream) error {
	want, got := random(1, 100_000), make([]byte, 100_000)
	written := testwait.Start(func() error { return writeInPieces(s, want) })
	if _, err := io.ReadFull(s, got); err != nil {
		return err
	}
	if string(want) != string(got) {
		return fmt.Errorf("the echo differs")
	}
	return <-written
}

// sessionLimit checks that a stream beyond MaxStreams is reset: reads of it fail with an error that
// is neither io.EOF nor ErrClosed. The session and the other streams go on. Once one of these is
// closed, a new stream is accepted.
func sessionLimit(t *testing.T, b Backend) {
	client, server := b.sessions(t, limits)
	var opened, accepted []transport.Stream
	for range limits.MaxStreams {
		o, a := open(t, client, server)
		opened, accepted = append(opened, o), append(accepted, a)
	}
	for range repetitions {
		more, err := client.Open()
		require.NoError(t, err)
		err = testwait.Finish(t, testwait.Start(func() error { return readOne(more) }))
		require.Error(t, err)
		require.NotEqual(t, io.EOF, err)
		require.NotErrorIs(t, err, transport.ErrClosed)
	}
	require.NoError(t, client.Err())
	for i := range opened {
		write(t, opened[i], "still open")
		wantBytes(t, accepted[i], "still open")
	}
	require.NoError(t, accepted[0].Close())
	openUntilAccepted(t, client, server)
}

// openUntilAccepted opens streams on client until server has accepted one and the client has read a
// byte from it. Streams that are opened before the server knows that another stream was closed are
// reset, so several attempts may be needed.
func openUntilAccepted(t *testing.T, client, server transport.Session) {
	t.Helper()
	served := testwait.Start(func() error {
		st, err := server.Accept(t.Context())
		if err != nil {
			return err
		}
		_, err = st.Write([]byte("!"))
		return err
	})
	for rejected := true; rejected && !t.Failed(); {
		st, err := client.Open()
		require.NoError(t, err)
		rejected = readOne(st) != nil
	}
	require.NoError(t, testwait.Finish(t, served))
}

// sessionWindow checks that a writer blocks while its stream is not read, and that other streams of
// the session carry data while it blocks. All bytes arrive once the stream is read.
func sessionWindow(t *testing.T, b Backend) {
	client, server := b.sessions(t, limits)
	full, unread := open(t, client, server)
	written := testwait.Start(func() error {
		for range 64 {
			if _, err := full.Write(chunk); err != nil {
				return err
			}
		}
		return full.CloseWrite()
	})
	o, a := open(t, client, server)
	for range 20 {
		write(t, o, string(chunk))
		wantBytes(t, a, string(chunk))
	}
	select {
	case <-written:
		t.Error("the writer is 4 MiB ahead of a window of 256 KiB")
	default:
	}
	n, err := io.Copy(io.Discard, unread)
	require.NoError(t, err)
	require.EqualValues(t, 64*len(chunk), n)
	require.NoError(t, testwait.Finish(t, written))
}

// sessionBudget sends on several streams more bytes than the budget of the session has. It checks
// that all bytes arrive, and that the session releases all that it has acquired from the budget,
// and never more, until both ends are closed.
func sessionBudget(t *testing.T, b Backend) {
	const streams = 5
	rounds := race.Pick(100, 40) // of 64 KiB, together more than the budget
	p := &countingBudget{size: 1 << 20}
	client, server := b.sessions(t, transport.SessionConfig{MaxStreams: streams, Budget: p})
	var opened, accepted []transport.Stream
	var written []<-chan error
	for range streams {
		o, a := open(t, client, server)
		opened, accepted = append(opened, o), append(accepted, a)
		written = append(written, testwait.Start(func() error {
			for range rounds {
				if _, err := o.Write(chunk); err != nil {
					return err
				}
			}
			return o.CloseWrite()
		}))
	}
	for i, a := range accepted {
		n, err := io.Copy(io.Discard, a)
		require.NoError(t, err)
		require.EqualValues(t, rounds*len(chunk), n)
		require.NoError(t, testwait.Finish(t, written[i]))
		if i%2 == 0 {
			require.NoError(t, a.Close())
			require.NoError(t, opened[i].Close())
		}
	}
	require.NoError(t, client.Close())
	require.NoError(t, server.Close())
	require.Zero(t, p.used)
	require.False(t, p.wrong, "more was released than acquired")
}

// countingBudget is a budget that counts the acquired bytes and checks every release.
type countingBudget struct {
	size int

	mu    sync.Mutex
	used  int
	wrong bool // more was released than acquired
}

func (p *countingBudget) Acquire(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > p.size-p.used {
		return false
	}
	p.used += n
	return true
}

func (p *countingBudget) Release(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used -= n
	p.wrong = p.wrong || n <= 0 || p.used < 0
}

func sessionAcceptWaits(t *testing.T, b Backend) {
	client, server := b.sessions(t, limits)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := testwait.Start(func() error {
		_, err := server.Accept(ctx)
		return err
	})
	yield()
	cancel()
	require.ErrorIs(t, testwait.Finish(t, waiting), context.Canceled)
	o, a := open(t, client, server)
	write(t, o, "not taken by the cancelled call")
	wantBytes(t, a, "not taken by the cancelled call")
	_, err := client.Open()
	require.NoError(t, err)
	_, err = server.Accept(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func sessionNetConn(t *testing.T, b Backend) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		client, server := b.sessions(t, limits)
		opened, accepted := open(t, client, server)
		return opened, accepted, func() { client.Close(); server.Close() }, nil
	})
}

// calls starts five calls that block, each on a new goroutine: two reads and endless writes on the
// stream st of the session s, an Accept on s, and a wait for s.Done. It returns a channel for each,
// which receives the call's error.
func calls(s transport.Session, st transport.Stream) []<-chan error {
	return []<-chan error{
		testwait.Start(func() error { return readOne(st) }),
		testwait.Start(func() error { return readOne(st) }),
		testwait.Start(func() error { return writeUntilError(st) }),
		testwait.Start(func() error { _, err := s.Accept(context.Background()); return err }),
		testwait.Start(func() error { <-s.Done(); return s.Err() }),
	}
}

// wantEnd checks that the session s has ended: s.Err and all calls in blocked, the result of calls,
// return errors that match cause, and so do later calls of Open and Accept of s and of Read and
// Write of its stream st. st.Close must return nil. wantEnd also clears st's deadlines.
func wantEnd(t *testing.T, s transport.Session, st transport.Stream, blocked []<-chan error, cause error) {
	t.Helper()
	for i, call := range blocked {
		require.ErrorIs(t, testwait.Finish(t, call), cause, "call %d that was blocked", i)
	}
	require.ErrorIs(t, s.Err(), cause)
	_, err := s.Open()
	require.ErrorIs(t, err, cause)
	_, err = st.Write([]byte("x"))
	require.ErrorIs(t, err, cause)
	st.SetDeadline(time.Time{})
	require.ErrorIs(t, readOne(st), cause)
	_, err = s.Accept(t.Context())
	require.ErrorIs(t, err, cause)
	require.NoError(t, st.Close())
}

func sessionClose(t *testing.T, b Backend) {
	client, server := b.sessions(t, limits)
	opened, _ := open(t, client, server)
	require.NoError(t, client.Err())
	blocked := calls(client, opened)
	yield()
	require.NoError(t, client.Close())
	wantEnd(t, client, opened, blocked, transport.ErrClosed)
	require.NoError(t, client.Close(), "closing again does nothing and returns nil")
}

func sessionPeerCloses(t *testing.T, b Backend) {
	for range repetitions {
		client, server := b.sessions(t, limits)
		opened, accepted := open(t, client, server)
		blocked := calls(client, opened)
		wantBytes(t, accepted, string(chunk))
		require.NoError(t, server.Close())
		wantEnd(t, client, opened, blocked, io.EOF)
		require.NoError(t, client.Close())
		require.ErrorIs(t, client.Err(), io.EOF, "the reason does not change")
	}
}

func sessionConnCloses(t *testing.T, b Backend) {
	d, a := b.connect(t)
	server := multiplex(t, a, limits)
	cfg := limits
	cfg.Client = true
	client := multiplex(t, d, cfg)
	opened, accepted := open(t, client, server)
	blocked := calls(client, opened)
	serverErr := testwait.Start(func() error {
		_, err := server.Accept(context.Background())
		return err
	})
	wantBytes(t, accepted, string(chunk))
	require.NoError(t, d.Close())
	wantEnd(t, client, opened, blocked, transport.ErrClosed)
	require.Error(t, testwait.Finish(t, serverErr))
	require.NoError(t, a.Close())
}

func sessionCloseFromMany(t *testing.T, b Backend) {
	client, server := b.sessions(t, limits)
	opened, accepted := open(t, client, server)
	var all []<-chan error
	for range repetitions {
		for _, c := range []io.Closer{client, server, opened, accepted} {
			all = append(all, testwait.Start(c.Close))
		}
	}
	for _, call := range all {
		require.NoError(t, testwait.Finish(t, call))
	}
}

// sessionBufferedDataAfterClose checks that streams that have arrived before the peer closes the
// session can still be accepted and their data read. After the data, a stream whose writing half
// was closed returns io.EOF itself, and the others an error that wraps io.EOF.
func sessionBufferedDataAfterClose(t *testing.T, b Backend) {
	client, server := b.sessions(t, limits)
	first, accepted := open(t, client, server)
	for i := range 3 {
		st, err := client.Open()
		require.NoError(t, err)
		write(t, st, fmt.Sprint("stream ", i))
		if i == 0 {
			require.NoError(t, st.CloseWrite())
		}
	}
	write(t, first, string(random(5, 100_000)))
	write(t, first, "!")
	wantBytes(t, accepted, string(random(5, 100_000)))
	wantBytes(t, accepted, "!")
	write(t, accepted, "all data has arrived")
	wantBytes(t, first, "all data has arrived")
	require.NoError(t, client.Close())

	<-server.Done()
	for i := range 3 {
		st := acceptStream(t, server)
		wantBytes(t, st, fmt.Sprint("stream ", i))
		err := readOne(st)
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, i == 0, err == io.EOF, "only a stream whose writer has closed its writing half ends with io.EOF itself")
	}
	_, err := server.Accept(t.Context())
	require.ErrorIs(t, err, io.EOF)
}
