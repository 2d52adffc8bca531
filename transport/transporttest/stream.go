package transporttest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// streamCases are the tests of the Stream of a transport.Multiplexer.
var streamCases = []testCase{
	{"BothWaysAtOnce", "Stream: Stream is an ordered stream of bytes between two processes: a net.Conn that can be written without blocking, and whose writing half can be closed.", streamBothWays},
	{"AfterFrames", "Multiplexer.Stream: Stream returns a Stream of the connection's bytes, from the next one on in both directions, including those that were read ahead.", streamAfterFrames},
	{"ReadAhead", "Multiplexer.Stream: Stream returns a Stream of the connection's bytes, from the next one on in both directions, including those that were read ahead.", streamReadAhead},
	{"TryWrite", "Stream.TryWrite: TryWrite writes the pieces in order as far as it can without blocking, and returns the number of bytes written, possibly 0.", streamTryWrite},
	{"CloseWriteThenRead", "Stream.CloseWrite: CloseWrite closes the writing half: the peer reads the bytes written before, then io.EOF. Reading goes on. Later writes return an error that matches ErrClosed.", streamCloseWrite},
	{"CloseDuringRead", "Stream: After Close, calls in progress and later ones return an error that matches ErrClosed.", streamCloseDuringRead},
	{"CloseDuringWrite", "Stream: After Close, calls in progress and later ones return an error that matches ErrClosed.", streamCloseDuringWrite},
	{"CloseByPeer", "Stream: A peer that closes causes other errors.", streamPeerCloses},
	{"CloseOfConn", "Multiplexer.Stream: Closing the Conn closes the Stream, and the reverse. Both have the same addresses.", streamConnCloses},
	{"Deadlines", "Stream: A deadline interrupts a blocked call with an error whose Timeout method returns true, and loses no bytes.", streamDeadlines},
	{"NetConn", "Stream: It keeps the contract of net.Conn, as golang.org/x/net/nettest.TestConn checks it, and io.EOF is not wrapped.", streamNetConn},
}

// raw makes c, which must implement transport.Multiplexer, a stream and returns the stream, which
// is closed at the end of the test. An error ends the test.
func raw(t *testing.T, c transport.Conn) transport.Stream {
	t.Helper()
	s, err := c.(transport.Multiplexer).Stream()
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// rawPair opens a connection, makes both ends streams, and returns them. They are closed at the end
// of the test.
func (b Backend) rawPair(t *testing.T) (dialled, accepted transport.Stream) {
	t.Helper()
	d, a := b.connect(t)
	return raw(t, d), raw(t, a)
}

// exchange sends more than 8 MiB in each direction between one and other at the same time, closes
// both writing halves, and checks that the bytes arrive unchanged, followed by io.EOF.
func exchange(t *testing.T, one, other transport.Stream) {
	t.Helper()
	const size = 8<<20 + 7 // enough to make the rings of a session grow
	var sent []<-chan error
	var got []<-chan bool
	for i, direction := range [][2]transport.Stream{{one, other}, {other, one}} {
		want := random(uint64(i), size)
		sent = append(sent, testwait.Start(func() error { return writeInPieces(direction[0], want) }))
		got = append(got, testwait.Start(func() bool {
			p, err := io.ReadAll(direction[1])
			return err == nil && bytes.Equal(want, p)
		}))
	}
	for i := range sent {
		require.NoError(t, testwait.Finish(t, sent[i]))
		require.True(t, testwait.Finish(t, got[i]))
	}
}

// writeInPieces writes p in pieces of varying sizes and then calls CloseWrite. It returns the first
// error of a write, or that of CloseWrite.
func writeInPieces(s transport.Stream, p []byte) error {
	for size := 1; len(p) > 0; size = size*3%300_007 + 1 {
		n, err := s.Write(p[:min(size, len(p))])
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return s.CloseWrite()
}

func streamBothWays(t *testing.T, b Backend) {
	dialled, accepted := b.rawPair(t)
	exchange(t, dialled, accepted)
}

// streamAfterFrames checks that one end can become a stream and write bytes before the other end
// has read the frames that were written earlier. Frames that an end has not read before it becomes
// a stream, headers included, are the first bytes of the stream.
func streamAfterFrames(t *testing.T, b Backend) {
	d, a := b.connect(t)
	for _, direction := range [][2]transport.Conn{{d, a}, {a, d}} {
		require.NoError(t, direction[0].WriteFrames(text("one"), text("two")))
	}
	dialled := raw(t, d)
	write(t, dialled, "raw bytes")
	wantFrame(t, a, []byte("one"))
	wantFrame(t, a, []byte("two"))
	accepted := raw(t, a)
	wantBytes(t, accepted, "raw bytes")
	write(t, accepted, "raw reply")
	require.NoError(t, accepted.CloseWrite())

	const frames = "one" + "two"
	got, err := io.ReadAll(dialled)
	require.NoError(t, err)
	require.True(t, bytes.HasSuffix(got, []byte("raw reply")))
	require.Greater(t, len(got), len(frames)+len("raw reply"), "frames that were not read are part of the stream")
}

// streamReadAhead checks that a stream begins with the bytes that the connection has read ahead
// together with frames. It needs b.DialRaw to write frames and bytes at once, and is skipped if
// that is nil.
func streamReadAhead(t *testing.T, b Backend) {
	if b.DialRaw == nil {
		t.Skip("no DialRaw")
	}
	w, c := b.raw(t)
	tail := random(1, 3000)
	_, err := w.Write(append(append(b.frame("frame"), b.frame("")...), tail...))
	require.NoError(t, err)
	wantFrame(t, c, []byte("frame"))
	wantFrame(t, c, nil)
	s := raw(t, c)
	wantBytes(t, s, string(tail[:1]))
	wantBytes(t, s, string(tail[1:]))
	_, err = w.Write([]byte("more"))
	require.NoError(t, err)
	wantBytes(t, s, "more")
	require.NoError(t, w.Close())
	_, err = s.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
}

func streamTryWrite(t *testing.T, b Backend) {
	dialled, accepted := b.rawPair(t)
	tryWriteThenRead(t, dialled, accepted)
}

// tryWriteThenRead checks that TryWrite, given more bytes than all buffers hold, does not block,
// and returns the number of bytes that it has written, possibly 0. The other end must read exactly
// these bytes and those of a later Write.
func tryWriteThenRead(t *testing.T, one, other transport.Stream) {
	n, err := one.TryWrite(hugeFrame(chunk)...)
	require.NoError(t, err)
	require.Less(t, n, manyChunks*len(chunk))
	written := testwait.Start(func() error {
		_, err := one.Write([]byte("the end"))
		return errors.Join(err, one.CloseWrite())
	})
	got, err := io.ReadAll(other)
	require.NoError(t, err)
	require.NoError(t, testwait.Finish(t, written))
	want := append(bytes.Repeat(chunk[:1], n), "the end"...)
	require.True(t, bytes.Equal(want, got), "the bytes differ")
}

func streamCloseWrite(t *testing.T, b Backend) {
	dialled, accepted := b.rawPair(t)
	closeWriteThenRead(t, dialled, accepted)
}

func streamCloseDuringRead(t *testing.T, b Backend) {
	for range repetitions {
		dialled, _ := b.rawPair(t)
		closeDuringRead(t, dialled)
	}
}

func streamCloseDuringWrite(t *testing.T, b Backend) {
	dialled, accepted := b.rawPair(t)
	closeDuringStreamWrite(t, dialled, accepted)
}

func streamPeerCloses(t *testing.T, b Backend) {
	dialled, accepted := b.rawPair(t)
	peerClosesStream(t, dialled, accepted)
}

func streamConnCloses(t *testing.T, b Backend) {
	d, a := b.connect(t)
	dialled, accepted := raw(t, d), raw(t, a)
	read := testwait.Start(func() error { return readOne(dialled) })
	yield()
	require.NoError(t, d.Close())
	require.ErrorIs(t, testwait.Finish(t, read), transport.ErrClosed)
	require.Equal(t, io.EOF, readOne(accepted))
	require.NoError(t, accepted.Close())
	require.NoError(t, a.Close())
	require.Equal(t, a.RemoteAddr(), accepted.RemoteAddr().String())
	require.Equal(t, a.LocalAddr(), accepted.LocalAddr().String())
}

func streamDeadlines(t *testing.T, b Backend) {
	dialled, accepted := b.rawPair(t)
	readDeadlines(t, dialled, accepted)
	if !b.WriteDeadlineBreaks {
		writeDeadlines(t, dialled, accepted)
	}
}

func streamNetConn(t *testing.T, b Backend) {
	if b.WriteDeadlineBreaks {
		t.Skip("a write whose deadline has passed breaks these streams")
	}
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		dialled, accepted := b.rawPair(t)
		return dialled, accepted, func() { dialled.Close(); accepted.Close() }, nil
	})
}

// The following tests apply to streams of connections and of sessions.

func write(t *testing.T, s transport.Stream, p string) {
	t.Helper()
	n, err := s.Write([]byte(p))
	require.NoError(t, err)
	require.Equal(t, len(p), n)
}

func wantBytes(t *testing.T, s transport.Stream, want string) {
	t.Helper()
	got := make([]byte, len(want))
	_, err := io.ReadFull(s, got)
	require.NoError(t, err)
	require.True(t, want == string(got), "the bytes differ")
}

func readOne(s transport.Stream) error {
	_, err := s.Read(make([]byte, 1))
	return err
}

// writeUntilError writes chunk to s again and again until a write fails, and returns its error.
func writeUntilError(s transport.Stream) error {
	for {
		if _, err := s.Write(chunk); err != nil {
			return err
		}
	}
}

func closeWriteThenRead(t *testing.T, one, other transport.Stream) {
	t.Helper()
	write(t, one, "request")
	require.NoError(t, one.CloseWrite())
	_, err := one.Write([]byte("too late"))
	require.ErrorIs(t, err, transport.ErrClosed, "a write after CloseWrite")
	wantBytes(t, other, "request")
	for range 2 {
		require.Equal(t, io.EOF, readOne(other), "each read after CloseWrite of the peer returns io.EOF itself, as io.Reader requires")
	}
	write(t, other, "reply")
	wantBytes(t, one, "reply")
	require.NoError(t, other.Close())
	require.Equal(t, io.EOF, readOne(one))
}

func closeDuringRead(t *testing.T, s transport.Stream) {
	t.Helper()
	reads := []<-chan error{
		testwait.Start(func() error { return readOne(s) }),
		testwait.Start(func() error { return readOne(s) }),
	}
	yield()
	require.NoError(t, s.Close())
	for _, read := range reads {
		require.ErrorIs(t, testwait.Finish(t, read), transport.ErrClosed)
	}
	require.ErrorIs(t, readOne(s), transport.ErrClosed)
	_, err := s.Write([]byte("x"))
	require.ErrorIs(t, err, transport.ErrClosed)
	s.Close()
}

// closeDuringStreamWrite checks that two blocked writes to the stream one return ErrClosed when
// one.Close is called, and that the peer does not see changes that the caller makes to the written
// memory afterwards. It reads the stream other until a read fails.
func closeDuringStreamWrite(t *testing.T, one, other transport.Stream) {
	t.Helper()
	part := bytes.Clone(chunk)
	var writers []<-chan error
	for range 2 {
		writers = append(writers, testwait.Start(func() error {
			for {
				if _, err := one.Write(part); err != nil {
					return err
				}
			}
		}))
	}
	wantBytes(t, other, string(chunk))
	yield()
	require.NoError(t, one.Close())
	for _, w := range writers {
		require.ErrorIs(t, testwait.Finish(t, w), transport.ErrClosed)
	}
	clear(part)
	p := make([]byte, len(chunk))
	for {
		n, err := other.Read(p)
		require.True(t, bytes.Equal(chunk[:n], p[:n]))
		if err != nil {
			return
		}
	}
}

func peerClosesStream(t *testing.T, one, other transport.Stream) {
	t.Helper()
	written := testwait.Start(func() error { return writeUntilError(one) })
	read := testwait.Start(func() error { return readOne(one) })
	wantBytes(t, other, string(chunk))
	require.NoError(t, other.Close())
	err := testwait.Finish(t, written)
	require.Error(t, err)
	require.NotErrorIs(t, err, transport.ErrClosed)
	require.Error(t, testwait.Finish(t, read))
}

// isTimeout reports whether err is a net.Error, possibly wrapped, whose Timeout method returns
// true.
func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// wantTimeout ends the test unless isTimeout(err).
func wantTimeout(t *testing.T, err error) {
	t.Helper()
	require.True(t, isTimeout(err), "a call whose deadline has passed returned %v", err)
}

var longAgo = time.Unix(1, 0)

func readDeadlines(t *testing.T, one, other transport.Stream) {
	t.Helper()
	for range repetitions {
		read := testwait.Start(func() error { return readOne(one) })
		yield()
		require.NoError(t, one.SetReadDeadline(longAgo))
		wantTimeout(t, testwait.Finish(t, read))
		wantTimeout(t, readOne(one))
		write(t, one, "still writable")
		wantBytes(t, other, "still writable")

		require.NoError(t, one.SetReadDeadline(time.Time{}))
		write(t, other, "still readable")
		wantBytes(t, one, "still readable")
	}
	readWithShortDeadlines(t, one, other)
}

// readWithShortDeadlines reads from the stream one with deadlines of microseconds, while at least 1
// MiB is written to the stream other. It checks that no byte is lost and that the writer does not
// remain blocked, as it does if a window update is lost. It clears the read deadline at the end.
func readWithShortDeadlines(t *testing.T, one, other transport.Stream) {
	t.Helper()
	want := random(3, race.Pick(4<<20, 1<<20))
	written := testwait.Start(func() error {
		_, err := other.Write(want)
		return err
	})
	got := testwait.Start(func() []byte {
		var got []byte
		p := make([]byte, 100_000)
		for try := 0; len(got) < len(want); try++ {
			one.SetReadDeadline(time.Now().Add(time.Duration(try%50) * time.Microsecond))
			n, err := one.Read(p)
			got = append(got, p[:n]...)
			if err == nil {
				continue
			}
			if !isTimeout(err) {
				break
			}
		}
		return got
	})
	require.NoError(t, testwait.Finish(t, written))
	require.True(t, bytes.Equal(want, testwait.Finish(t, got)))
	require.NoError(t, one.SetReadDeadline(time.Time{}))
}

// writeDeadlines checks that SetWriteDeadline interrupts a write to the stream one that is blocked
// because the stream other is not read, and that later writes fail too. After the deadline is
// cleared it goes on after the bytes that were written, and checks that all bytes arrive at other
// without a gap.
func writeDeadlines(t *testing.T, one, other transport.Stream) {
	t.Helper()
	block := random(4, 100_000)
	begun := testwait.Start(func() int {
		for written := 0; ; {
			n, err := one.Write(block[written%len(block):])
			written += n
			if isTimeout(err) {
				return written
			}
			if err != nil {
				return -1
			}
		}
	})
	yield()
	require.NoError(t, one.SetWriteDeadline(longAgo))
	n := testwait.Finish(t, begun)
	require.GreaterOrEqual(t, n, 0)
	_, err := one.Write([]byte("x"))
	wantTimeout(t, err)
	require.NoError(t, one.SetDeadline(time.Time{}))

	written := testwait.Start(func() error { return writeInPieces(one, block[n%len(block):]) })
	got, err := io.ReadAll(other)
	require.NoError(t, err)
	require.True(t, bytes.Equal(bytes.Repeat(block, n/len(block)+1), got))
	require.NoError(t, testwait.Finish(t, written))
}
