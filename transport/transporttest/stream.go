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
	{"BothWaysAtOnce", streamBothWays},
	{"AfterFrames", streamAfterFrames},
	{"ReadAhead", streamReadAhead},
	{"TryWrite", streamTryWrite},
	{"CloseWriteThenRead", streamCloseWrite},
	{"CloseDuringRead", streamCloseDuringRead},
	{"CloseDuringWrite", streamCloseDuringWrite},
	{"CloseByPeer", streamPeerCloses},
	{"CloseOfConn", streamConnCloses},
	{"Deadlines", streamDeadlines},
	{"NetConn", streamNetConn},
}

// raw turns a connection into a stream, which is closed at the end of the test.
func raw(t *testing.T, c transport.Conn) transport.Stream {
	t.Helper()
	s, err := c.(transport.Multiplexer).Stream()
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// rawPair returns the two ends of a connection as streams.
func (b Backend) rawPair(t *testing.T) (dialled, accepted transport.Stream) {
	t.Helper()
	d, a := b.connect(t)
	return raw(t, d), raw(t, a)
}

// exchange sends more bytes than all buffers hold in both directions concurrently, and compares
// what arrives.
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

// writeInPieces writes p in pieces of varying sizes and then calls CloseWrite.
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

// One end writes bytes while the other still reads frames.
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

// Frames and bytes are written at once, so that the other end may read both at once.
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

// TryWrite writes a part, possibly nothing, of more bytes than fit into all buffers. The bytes of a
// later Write follow.
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

// writeUntilError writes until a write fails.
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
	require.NoError(t, one.CloseWrite())
	_, err := one.Write([]byte("too late"))
	require.ErrorIs(t, err, transport.ErrClosed)
	wantBytes(t, other, "request")
	for range 2 {
		require.Equal(t, io.EOF, readOne(other))
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

// closeDuringStreamWrite closes a stream during two writes. The peer must not see changes to their
// memory after they return.
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

// wantTimeout checks that err is the error of a passed deadline.
func wantTimeout(t *testing.T, err error) {
	t.Helper()
	timeout, ok := err.(net.Error)
	require.True(t, ok, "%v", err)
	require.True(t, timeout.Timeout(), "%v", err)
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

// readWithShortDeadlines reads with short deadlines while the peer sends more than any window. No
// byte and no window update may be lost.
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
			if timeout, ok := err.(net.Error); !ok || !timeout.Timeout() {
				break
			}
		}
		return got
	})
	require.NoError(t, testwait.Finish(t, written))
	require.True(t, bytes.Equal(want, testwait.Finish(t, got)))
	require.NoError(t, one.SetReadDeadline(time.Time{}))
}

// writeDeadlines interrupts a write that blocks because the peer does not read, and continues after
// the bytes that it wrote.
func writeDeadlines(t *testing.T, one, other transport.Stream) {
	t.Helper()
	block := random(4, 100_000)
	begun := testwait.Start(func() int {
		for written := 0; ; {
			n, err := one.Write(block[written%len(block):])
			written += n
			if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
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
