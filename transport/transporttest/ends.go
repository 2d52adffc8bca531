package transporttest

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var endCases = []testCase{
	{"CloseIsEOFAfterFrames", closeIsEOF},
	{"CloseWriteThenRead", closeWriteThenReadOn},
	{"CloseWriteAtBothEnds", closeWriteBothSides},
	{"CloseWithinBody", closeWithinBody},
}

// rawCases end a connection within a frame, after each of its bytes.
var rawCases = []testCase{
	{"EndWithinHeader", endWithinHeader},
	{"EndWithinBody", endWithinBody},
	{"EndBetweenFrames", endBetweenFrames},
	{"FrameByteByByte", frameByteByByte},
	{"CloseDuringReadBody", closeDuringReadBody},
}

func closeIsEOF(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.NoError(t, dialled.WriteFrames(text("one"), text("two")))
	require.NoError(t, dialled.Close())
	wantFrame(t, accepted, []byte("one"))
	wantFrame(t, accepted, []byte("two"))
	wantEOF(t, accepted)
}

func closeWriteThenReadOn(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.NoError(t, dialled.WriteFrames(text("request")))
	require.NoError(t, dialled.CloseWrite())
	require.ErrorIs(t, dialled.WriteFrames(text("too late")), transport.ErrClosed)
	wantFrame(t, accepted, []byte("request"))
	wantEOF(t, accepted)
	require.NoError(t, accepted.WriteFrames(text("reply")))
	wantFrame(t, dialled, []byte("reply"))
	require.NoError(t, accepted.Close())
	wantEOF(t, dialled)
}

func closeWriteBothSides(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.NoError(t, dialled.CloseWrite())
	require.NoError(t, accepted.CloseWrite())
	wantEOF(t, dialled)
	wantEOF(t, accepted)
}

// The writer closes within a frame that is larger than any buffer.
func closeWithinBody(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	written := writeHugeFrame(dialled)
	n, err := accepted.NextFrame()
	require.NoError(t, err)
	require.EqualValues(t, manyChunks*len(chunk), n)
	require.NoError(t, dialled.Close())
	require.ErrorIs(t, testwait.Finish(t, written), transport.ErrClosed)

	dst := make([]byte, len(chunk))
	for err = nil; err == nil; {
		err = accepted.ReadBody(dst)
	}
	require.Equal(t, io.ErrUnexpectedEOF, err)
	_, err = accepted.NextFrame()
	require.Error(t, err)
	require.NotEqual(t, io.EOF, err, "a broken frame must not become a clean end")
}

// raw connects to a new listener with b.DialRaw. It returns the dialled end, which the test closes,
// and the accepted connection.
func (b Backend) raw(t *testing.T) (io.WriteCloser, transport.Conn) {
	t.Helper()
	_, l := b.listen(t)
	w, err := b.DialRaw(l.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { w.Close() })
	return w, accept(t, l)
}

// frame returns a frame with the body s as it is on the wire.
func (b Backend) frame(s string) []byte { return append(b.AppendHeader(nil, len(s)), s...) }

func endWithinHeader(t *testing.T, b Backend) {
	header := b.AppendHeader(nil, 5)
	for n := 1; n < len(header); n++ {
		w, c := b.raw(t)
		_, err := w.Write(append(b.frame("whole"), header[:n]...))
		require.NoError(t, err)
		require.NoError(t, w.Close())
		wantFrame(t, c, []byte("whole"))
		for range 2 {
			_, err = c.NextFrame()
			require.Equal(t, io.ErrUnexpectedEOF, err)
		}
	}
}

func endWithinBody(t *testing.T, b Backend) {
	for n := range 5 {
		w, c := b.raw(t)
		_, err := w.Write(append(b.AppendHeader(nil, 5), "body"[:n]...))
		require.NoError(t, err)
		require.NoError(t, w.Close())
		size, err := c.NextFrame()
		require.NoError(t, err)
		require.EqualValues(t, 5, size)
		dst := make([]byte, 5)
		require.NoError(t, c.ReadBody(dst[:n]))
		require.Equal(t, "body"[:n], string(dst[:n]))
		for range 2 {
			require.Equal(t, io.ErrUnexpectedEOF, c.ReadBody(dst[n:]))
		}
	}
}

func endBetweenFrames(t *testing.T, b Backend) {
	w, c := b.raw(t)
	_, err := w.Write(append(b.frame("whole"), b.frame("")...))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	wantFrame(t, c, []byte("whole"))
	wantFrame(t, c, nil)
	wantEOF(t, c)
}

func frameByteByByte(t *testing.T, b Backend) {
	w, c := b.raw(t)
	got := testwait.Start(func() string {
		p, err := readFrame(c)
		if err != nil {
			return err.Error()
		}
		return string(p)
	})
	for _, c := range b.frame("one byte at a time") {
		_, err := w.Write([]byte{c})
		require.NoError(t, err)
	}
	require.Equal(t, "one byte at a time", testwait.Finish(t, got))
}

// After Close the caller may use the memory, even if the peer still sends.
func closeDuringReadBody(t *testing.T, b Backend) {
	w, c := b.raw(t)
	_, err := w.Write(append(b.AppendHeader(nil, 8), "half"...))
	require.NoError(t, err)
	_, err = c.NextFrame()
	require.NoError(t, err)
	dst := make([]byte, 8)
	read := testwait.Start(func() error { return c.ReadBody(dst) })
	yield()
	require.NoError(t, c.Close())
	require.ErrorIs(t, testwait.Finish(t, read), transport.ErrClosed)
	copy(dst, "new data")
	w.Write([]byte("late"))
	yield()
	require.Equal(t, "new data", string(dst))
}
