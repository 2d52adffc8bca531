package transporttest

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var endCases = []testCase{
	{"CloseIsEOFAfterFrames", "Conn.Close: Bytes in transit may be lost; a caller that needs them delivered calls CloseWrite and reads until io.EOF.", closeIsEOF},
	{"CloseWriteThenRead", "Conn.CloseWrite: Reading goes on; WriteFrames returns ErrClosed from then on, also a call that is blocked.", closeWriteThenReadOn},
	{"CloseWriteAtBothEnds", "Conn.CloseWrite: CloseWrite closes the writing half: the peer reads the frames written before, then io.EOF.", closeWriteBothSides},
	{"CloseWithinBody", "Conn: An error that ends the reading half is sticky: later calls of NextFrame and ReadBody return an error that matches the same one, and no call returns io.EOF after an end within a frame.", closeWithinBody},
}

// rawCases end a connection within a frame, after each of its bytes.
var rawCases = []testCase{
	{"EndWithinHeader", "Conn.NextFrame: It returns io.EOF if the peer closed between two frames and io.ErrUnexpectedEOF if it closed within a header.", endWithinHeader},
	{"EndWithinBody", "Conn.ReadBody: An orderly end of the connection within the body is io.ErrUnexpectedEOF.", endWithinBody},
	{"EndBetweenFrames", "Conn.NextFrame: It returns io.EOF if the peer closed between two frames and io.ErrUnexpectedEOF if it closed within a header.", endBetweenFrames},
	{"FrameByteByByte", "Conn: Conn carries delimited frames in order: one frame written is one frame read.", frameByteByByte},
	{"CloseDuringReadBody", "Conn.Close: Blocked calls return ErrClosed, and no longer use their memory when they return.", closeDuringReadBody},
}

// closeIsEOF checks that a peer that calls CloseWrite before Close receives all frames and then
// io.EOF. After a Close alone it may receive fewer frames, but no others, and then an error.
func closeIsEOF(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.NoError(t, dialled.WriteFrames(text("one"), text("two")))
	require.NoError(t, dialled.CloseWrite())
	wantFrame(t, accepted, []byte("one"))
	wantFrame(t, accepted, []byte("two"))
	wantEOF(t, accepted)
	require.NoError(t, dialled.Close())

	dialled, accepted = b.connect(t)
	require.NoError(t, dialled.WriteFrames(text("one"), text("two")))
	require.NoError(t, dialled.Close())
	var err error
	for _, want := range []string{"one", "two"} {
		var got []byte
		if got, err = readFrame(accepted); err != nil {
			break
		}
		require.Equal(t, want, string(got))
	}
	if err == nil {
		_, err = accepted.NextFrame()
	}
	require.Error(t, err)
	require.NotErrorIs(t, err, transport.ErrClosed, "it is the peer that has closed")
}

func closeWriteThenReadOn(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.NoError(t, dialled.WriteFrames(text("request")))
	require.NoError(t, dialled.CloseWrite())
	require.ErrorIs(t, dialled.WriteFrames(text("too late")), transport.ErrClosed, "WriteFrames after CloseWrite")
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

// closeWithinBody checks the reader's errors if the writer calls Close within a frame that is
// larger than any buffer: neither ReadBody, after the bytes that have arrived, nor NextFrame then
// returns io.EOF.
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
	require.NotErrorIs(t, err, io.EOF, "a frame that was cut off must not look like an orderly end")
	require.NotErrorIs(t, err, transport.ErrClosed, "it is the peer that has closed")
	_, err = accepted.NextFrame()
	require.Error(t, err)
	require.NotErrorIs(t, err, io.EOF, "a frame that was cut off must not look like an orderly end")
}

// raw opens a listener and connects to it with b.DialRaw, which must not be nil. It returns the
// dialled end, which writes bytes without framing, and the accepted connection. Both are closed at
// the end of the test.
func (b Backend) raw(t *testing.T) (io.WriteCloser, transport.Conn) {
	t.Helper()
	_, l := b.listen(t)
	w, err := b.DialRaw(l.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { w.Close() })
	return w, accept(t, l)
}

// frame returns the bytes of a frame with the body s on the wire: the header and s.
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
			require.ErrorIs(t, err, io.ErrUnexpectedEOF, "an end within a header is io.ErrUnexpectedEOF in each call")
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
			require.ErrorIs(t, c.ReadBody(dst[n:]), io.ErrUnexpectedEOF, "an end within a body is io.ErrUnexpectedEOF in each call")
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

// closeDuringReadBody checks that a ReadBody that Close interrupts returns ErrClosed, and that it
// does not write to the caller's memory afterwards, even if more bytes arrive.
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
	require.Equal(t, "new data", string(dst), "ReadBody no longer uses its memory when it has returned")
}
