package transporttest

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// streamCases are for connections with the power of a Streamer.
var streamCases = []testCase{
	{"BothWaysAtOnce", streamBothWays},
	{"BehindFrames", streamBehindFrames},
	{"ReadAhead", streamReadAhead},
	{"CloseWriteThenReadOn", streamCloseWrite},
	{"CloseUnderRead", streamCloseUnderRead},
	{"CloseUnderWrite", streamCloseUnderWrite},
	{"CloseOfThePeer", streamPeerCloses},
	{"CloseOfTheConn", streamConnCloses},
	{"Deadlines", streamDeadlines},
	{"NetConn", streamNetConn},
}

// raw gives up the framing of a connection.
func raw(t *testing.T, c transport.Conn) transport.Stream {
	t.Helper()
	s, err := c.(transport.Streamer).Stream()
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// rawPair returns the two ends of a connection without framing.
func (b Backend) rawPair(t *testing.T) (dialled, accepted transport.Stream) {
	t.Helper()
	d, a := b.connect(t)
	return raw(t, d), raw(t, a)
}

// exchange sends bytes both ways at once, many more than any buffer holds, and
// compares what arrives.
func exchange(t *testing.T, one, other transport.Stream) {
	t.Helper()
	const size = 8<<20 + 7 // with less the rings of a session do not grow
	var sent []<-chan error
	var got []<-chan bool
	for i, way := range [][2]transport.Stream{{one, other}, {other, one}} {
		want := random(uint64(i), size)
		sent = append(sent, patience.Start(func() error { return writeInPieces(way[0], want) }))
		got = append(got, patience.Start(func() bool {
			p, err := io.ReadAll(way[1])
			return err == nil && bytes.Equal(want, p)
		}))
	}
	for i := range sent {
		require.NoError(t, patience.Finish(t, sent[i]))
		require.True(t, patience.Finish(t, got[i]))
	}
}

// writeInPieces writes p in pieces of all sizes, and the end.
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

// One end has changed over and talks on while the other still reads frames.
func streamBehindFrames(t *testing.T, b Backend) {
	d, a := b.connect(t)
	for _, way := range [][2]transport.Conn{{d, a}, {a, d}} {
		require.NoError(t, way[0].WriteFrames(text("one"), text("two")))
	}
	dialled := raw(t, d)
	write(t, dialled, "raw from here")
	wantFrame(t, a, []byte("one"))
	wantFrame(t, a, []byte("two"))
	accepted := raw(t, a)
	wantBytes(t, accepted, "raw from here")
	write(t, accepted, "raw answer")
	require.NoError(t, accepted.CloseWrite())

	const frames = "one" + "two"
	got, err := io.ReadAll(dialled)
	require.NoError(t, err)
	require.True(t, bytes.HasSuffix(got, []byte("raw answer")))
	require.Greater(t, len(got), len(frames)+len("raw answer"), "what was not read as frames is bytes too")
}

// Frames and bytes come with one write, and so with one read of the other end.
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

func streamCloseWrite(t *testing.T, b Backend) {
	dialled, accepted := b.rawPair(t)
	closeWriteThenRead(t, dialled, accepted)
}

func streamCloseUnderRead(t *testing.T, b Backend) {
	for range many {
		dialled, _ := b.rawPair(t)
		closeUnderRead(t, dialled)
	}
}

func streamCloseUnderWrite(t *testing.T, b Backend) {
	dialled, accepted := b.rawPair(t)
	closeUnderStreamWrite(t, dialled, accepted)
}

func streamPeerCloses(t *testing.T, b Backend) {
	dialled, accepted := b.rawPair(t)
	peerClosesStream(t, dialled, accepted)
}

func streamConnCloses(t *testing.T, b Backend) {
	d, a := b.connect(t)
	dialled, accepted := raw(t, d), raw(t, a)
	read := patience.Start(func() error { return readOne(dialled) })
	yield()
	require.NoError(t, d.Close())
	require.ErrorIs(t, patience.Finish(t, read), transport.ErrClosed)
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

// The rest holds for any stream, of a connection or of a session.

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
	require.True(t, want == string(got), "other bytes")
}

func readOne(s transport.Stream) error {
	_, err := s.Read(make([]byte, 1))
	return err
}

// writeOn writes until that fails.
func writeOn(s transport.Stream) error {
	for {
		if _, err := s.Write(chunk); err != nil {
			return err
		}
	}
}

func closeWriteThenRead(t *testing.T, one, other transport.Stream) {
	t.Helper()
	write(t, one, "question")
	require.NoError(t, one.CloseWrite())
	require.NoError(t, one.CloseWrite())
	_, err := one.Write([]byte("too late"))
	require.ErrorIs(t, err, transport.ErrClosed)
	wantBytes(t, other, "question")
	for range 2 {
		require.Equal(t, io.EOF, readOne(other))
	}
	write(t, other, "answer")
	wantBytes(t, one, "answer")
	require.NoError(t, other.Close())
	require.Equal(t, io.EOF, readOne(one))
}

func closeUnderRead(t *testing.T, s transport.Stream) {
	t.Helper()
	reads := []<-chan error{
		patience.Start(func() error { return readOne(s) }),
		patience.Start(func() error { return readOne(s) }),
	}
	yield()
	require.NoError(t, s.Close())
	for _, read := range reads {
		require.ErrorIs(t, patience.Finish(t, read), transport.ErrClosed)
	}
	require.ErrorIs(t, readOne(s), transport.ErrClosed)
	_, err := s.Write([]byte("x"))
	require.ErrorIs(t, err, transport.ErrClosed)
	s.Close()
}

// closeUnderStreamWrite closes under two writers, whose peer must not see what
// they do to their memory afterwards.
func closeUnderStreamWrite(t *testing.T, one, other transport.Stream) {
	t.Helper()
	part := bytes.Clone(chunk)
	var writers []<-chan error
	for range 2 {
		writers = append(writers, patience.Start(func() error {
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
		require.ErrorIs(t, patience.Finish(t, w), transport.ErrClosed)
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
	written := patience.Start(func() error { return writeOn(one) })
	read := patience.Start(func() error { return readOne(one) })
	wantBytes(t, other, string(chunk))
	require.NoError(t, other.Close())
	err := patience.Finish(t, written)
	require.Error(t, err)
	require.NotErrorIs(t, err, transport.ErrClosed)
	require.Error(t, patience.Finish(t, read))
}

// wantTimeout checks for the error of a deadline that has passed.
func wantTimeout(t *testing.T, err error) {
	t.Helper()
	timeout, ok := err.(net.Error)
	require.True(t, ok, "%v", err)
	require.True(t, timeout.Timeout(), "%v", err)
}

var longAgo = time.Unix(1, 0)

func readDeadlines(t *testing.T, one, other transport.Stream) {
	t.Helper()
	for range many {
		read := patience.Start(func() error { return readOne(one) })
		yield()
		require.NoError(t, one.SetReadDeadline(longAgo))
		wantTimeout(t, patience.Finish(t, read))
		wantTimeout(t, readOne(one))
		write(t, one, "writing goes on")
		wantBytes(t, other, "writing goes on")

		require.NoError(t, one.SetReadDeadline(time.Time{}))
		write(t, other, "reading goes on")
		wantBytes(t, one, "reading goes on")
	}
	impatientReader(t, one, other)
}

// impatientReader gives up again and again while much more comes than any
// window takes: no byte, and no leave to send more, may be lost on the way.
func impatientReader(t *testing.T, one, other transport.Stream) {
	t.Helper()
	want := random(3, race.Pick(4<<20, 1<<20))
	written := patience.Start(func() error {
		_, err := other.Write(want)
		return err
	})
	got := patience.Start(func() []byte {
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
	require.NoError(t, patience.Finish(t, written))
	require.True(t, bytes.Equal(want, patience.Finish(t, got)))
	require.NoError(t, one.SetReadDeadline(time.Time{}))
}

// writeDeadlines gives up writing where nobody reads, and goes on behind what
// was written.
func writeDeadlines(t *testing.T, one, other transport.Stream) {
	t.Helper()
	block := random(4, 100_000)
	begun := patience.Start(func() int {
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
	n := patience.Finish(t, begun)
	require.GreaterOrEqual(t, n, 0)
	_, err := one.Write([]byte("x"))
	wantTimeout(t, err)
	require.NoError(t, one.SetDeadline(time.Time{}))

	written := patience.Start(func() error { return writeInPieces(one, block[n%len(block):]) })
	got, err := io.ReadAll(other)
	require.NoError(t, err)
	require.True(t, bytes.Equal(bytes.Repeat(block, n/len(block)+1), got))
	require.NoError(t, patience.Finish(t, written))
}
