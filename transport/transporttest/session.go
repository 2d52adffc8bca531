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
	{"AfterFrames", sessionAfterFrames},
	{"Prepared", sessionPrepared},
	{"Bulk", sessionBulk},
	{"Order", sessionOrder},
	{"ManyStreams", sessionManyStreams},
	{"Limit", sessionLimit},
	{"Window", sessionWindow},
	{"Budget", sessionBudget},
	{"AcceptBlocks", sessionAcceptWaits},
	{"TryWrite", onStreams(tryWriteThenRead)},
	{"CloseWriteThenRead", onStreams(closeWriteThenRead)},
	{"CloseStreamDuringRead", onStreams(func(t *testing.T, one, _ transport.Stream) { closeDuringRead(t, one) })},
	{"CloseStreamDuringWrite", onStreams(closeDuringStreamWrite)},
	{"PeerClosesStream", onStreams(peerClosesStream)},
	{"ReadDeadlines", onStreams(readDeadlines)},
	{"WriteDeadlines", onStreams(writeDeadlines)},
	{"BothWaysAtOnce", onStreams(exchange)},
	{"NetConn", sessionNetConn},
	{"Close", sessionClose},
	{"CloseByPeer", sessionPeerCloses},
	{"CloseOfConn", sessionConnCloses},
	{"CloseFromManyGoroutines", sessionCloseFromMany},
	{"BufferedDataAfterClose", sessionBufferedDataAfterClose},
}

// limits is the configuration of the sessions.
var limits = transport.SessionConfig{MaxStreams: 5, Window: 256 << 10}

// multiplex makes c a session, which is closed at the end of the test.
func multiplex(t *testing.T, c transport.Conn, cfg transport.SessionConfig) transport.Session {
	t.Helper()
	s, err := c.(transport.Multiplexer).Multiplex(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// sessions returns the two ends of a session with the configuration cfg, which are closed at the
// end of the test.
func (b Backend) sessions(t *testing.T, cfg transport.SessionConfig) (client, server transport.Session) {
	t.Helper()
	d, a := b.connect(t)
	server = multiplex(t, a, cfg)
	cfg.Client = true
	return multiplex(t, d, cfg), server
}

// open opens a stream on the session from and accepts it on the session to.
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

// onStreams returns a test of streams: it runs test on streams opened by each end, in both roles.
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

// A session that both ends have prepared carries streams. The connection carries frames until then.
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

// OpenBulk opens a stream like Open, or the session declares that it has no such streams.
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

// The client starts the session without waiting for the server, which still reads frames.
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

// Both ends open more streams, one after the other, than may be open at once.
func sessionManyStreams(t *testing.T, b Backend) {
	rounds := race.Pick(50, 20)
	client, server := b.sessions(t, transport.SessionConfig{MaxStreams: 100})
	var users sync.WaitGroup
	errs := make(chan error, 4*rounds)
	for _, direction := range [][2]transport.Session{{client, server}, {server, client}} {
		for range rounds {
			opened, accepted := open(t, direction[0], direction[1])
			users.Go(func() {
				_, err := io.Copy(accepted, accepted)
				accepted.Close()
				errs <- err
			})
			users.Go(func() {
				errs <- echoRandom(opened)
				opened.Close()
			})
		}
	}
	users.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
}

// echoRandom writes random bytes and compares their echo.
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

// A stream beyond the limit is reset, without an effect on others.
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

// openUntilAccepted opens streams until the peer accepts one, after it has closed another one.
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

// A writer blocks until its stream is read, without blocking other streams.
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

// All unread bytes of a session's streams stay within its budget. All data arrives, and the budget
// is released in the end.
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

// calls starts blocking calls of each kind on the session s and its stream st, and returns channels
// that receive their errors.
func calls(s transport.Session, st transport.Stream) []<-chan error {
	return []<-chan error{
		testwait.Start(func() error { return readOne(st) }),
		testwait.Start(func() error { return readOne(st) }),
		testwait.Start(func() error { return writeUntilError(st) }),
		testwait.Start(func() error { _, err := s.Accept(context.Background()); return err }),
		testwait.Start(func() error { <-s.Done(); return s.Err() }),
	}
}

// wantEnd checks that the calls in blocked, which calls has started, fail with cause, and that
// later calls on s and st do so too.
func wantEnd(t *testing.T, s transport.Session, st transport.Stream, blocked []<-chan error, cause error) {
	t.Helper()
	for i, call := range blocked {
		require.ErrorIs(t, testwait.Finish(t, call), cause, "call %d", i)
	}
	require.Equal(t, cause, s.Err())
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
	require.NoError(t, client.Close())
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
		require.Equal(t, io.EOF, client.Err(), "the first cause is kept")
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

// Data that arrived before the peer closed can be read, also on streams that were not accepted
// before.
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
		require.Equal(t, i == 0, err == io.EOF, "only the stream that was closed ends with EOF itself")
	}
	_, err := server.Accept(t.Context())
	require.ErrorIs(t, err, io.EOF)
}
