package transporttest

import (
	"bytes"
	"io"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var closeCases = []testCase{
	{"DuringNextFrame", "Conn.Close: Blocked calls return ErrClosed, and no longer use their memory when they return.", closeDuringNextFrame},
	{"DuringWriteFrames", "Conn.Close: Blocked calls return ErrClosed, and no longer use their memory when they return.", closeDuringWrite},
	{"CloseWriteDuringWriteFrames", "Conn.CloseWrite: Reading goes on; WriteFrames returns ErrClosed from then on, also a call that is blocked.", closeWriteDuringWrite},
	{"ByPeerDuringWriteFrames", "Conn: Whatever the peer does, no error matches ErrClosed, which reports that this process has closed the Conn.", peerClosesDuringWrite},
	{"ByPeerDuringNextFrame", "Conn.NextFrame: It returns io.EOF if the peer closed between two frames and io.ErrUnexpectedEOF if it closed within a header.", peerClosesDuringRead},
	{"FailsLaterCalls", "ErrClosed: ErrClosed is returned by calls on a Conn or Listener that this process has closed.", everythingFailsAfterClose},
	{"FromManyGoroutines", "Conn: Close, CloseWrite and the address methods may be called concurrently at any time.", closeFromManyGoroutines},
	{"WriterWaitsForReader", "Conn.WriteFrames: A Conn holds at most 64 MiB.", writerWaits},
}

// chunk is sent repeatedly where the contents do not matter.
var chunk = bytes.Repeat([]byte{0xaa}, 64<<10)

// manyChunks of them, 128 MiB, are twice what a transport may buffer. For TCP the kernel alone may
// buffer more than 32 MiB.
const manyChunks = 2048

// maxBufferedChunks is how many chunks a writer may be ahead of its reader.
const maxBufferedChunks = manyChunks / 2

// yield lets other goroutines run, so that calls that tests have just started probably block. Tests
// must pass whether they have blocked or not.
func yield() {
	for range 100 {
		runtime.Gosched()
	}
}

// writeHugeFrame calls c.WriteFrames on a new goroutine with one frame that exceeds all buffers, so
// that the call blocks until the peer reads. It returns a channel that receives the call's error.
func writeHugeFrame(c transport.Conn) <-chan error {
	return testwait.Start(func() error { return c.WriteFrames(hugeFrame(chunk)) })
}

func hugeFrame(part []byte) transport.Frame {
	frame := make(transport.Frame, manyChunks)
	for i := range frame {
		frame[i] = part
	}
	return frame
}

// countChunks reads frames until NextFrame returns an error, and returns their number. Each frame
// must consist of the 64 KiB in the variable chunk. If a body differs or is incomplete, countChunks
// returns -1 at once.
func countChunks(c transport.Conn) int {
	dst := make([]byte, len(chunk))
	for n := 0; ; n++ {
		if _, err := c.NextFrame(); err != nil {
			return n
		}
		if err := c.ReadBody(dst); err != nil || !bytes.Equal(chunk, dst) {
			return -1
		}
	}
}

func closeDuringNextFrame(t *testing.T, b Backend) {
	for i := range repetitions {
		dialled, accepted := b.connect(t)
		c := []transport.Conn{dialled, accepted}[i%2]
		read := testwait.Start(func() error {
			_, err := c.NextFrame()
			return err
		})
		yield()
		require.NoError(t, c.Close())
		require.ErrorIs(t, testwait.Finish(t, read), transport.ErrClosed)
	}
}

// closeDuringWrite checks that a WriteFrames that Close interrupts returns ErrClosed, and that the
// peer does not see changes that the caller makes to the frame's memory afterwards.
func closeDuringWrite(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	part := bytes.Clone(chunk)
	written := testwait.Start(func() error { return dialled.WriteFrames(hugeFrame(part)) })
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	yield()
	require.NoError(t, dialled.Close())
	require.ErrorIs(t, testwait.Finish(t, written), transport.ErrClosed, "Close wakes a blocked WriteFrames")
	clear(part)
	dst := make([]byte, 100)
	for accepted.ReadBody(dst) == nil {
		require.True(t, bytes.Equal(chunk[:len(dst)], dst), "WriteFrames no longer uses its memory when it has returned")
	}
}

func closeWriteDuringWrite(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	written := writeHugeFrame(dialled)
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	yield()
	require.NoError(t, dialled.CloseWrite())
	require.ErrorIs(t, testwait.Finish(t, written), transport.ErrClosed, "CloseWrite wakes a blocked WriteFrames")
	require.NoError(t, accepted.WriteFrames(text("still readable")))
	wantFrame(t, dialled, []byte("still readable"))
	for err == nil {
		err = accepted.ReadBody(make([]byte, len(chunk)))
	}
	require.ErrorIs(t, err, io.ErrUnexpectedEOF, "an end within a body is io.ErrUnexpectedEOF")
}

func peerClosesDuringWrite(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	written := writeHugeFrame(dialled)
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	require.NoError(t, accepted.Close())
	err = testwait.Finish(t, written)
	require.Error(t, err)
	require.NotErrorIs(t, err, transport.ErrClosed)
}

func peerClosesDuringRead(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	read := testwait.Start(func() error {
		_, err := dialled.NextFrame()
		return err
	})
	yield()
	require.NoError(t, accepted.Close())
	require.ErrorIs(t, testwait.Finish(t, read), io.EOF)
}

// everythingFailsAfterClose checks that ReadBody and WriteFrames return ErrClosed after Close, even
// though frames have arrived, and so does NextFrame at an end without frames. A second Close must
// return nil.
func everythingFailsAfterClose(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.NoError(t, accepted.WriteFrames(text("first"), text("second")))
	_, err := dialled.NextFrame()
	require.NoError(t, err)
	require.NoError(t, dialled.Close())
	require.ErrorIs(t, dialled.ReadBody(make([]byte, 5)), transport.ErrClosed)
	require.ErrorIs(t, dialled.WriteFrames(text("x")), transport.ErrClosed)
	require.NoError(t, dialled.Close(), "closing again does nothing and returns nil")

	require.NoError(t, accepted.Close())
	_, err = accepted.NextFrame()
	require.ErrorIs(t, err, transport.ErrClosed)
}

func closeFromManyGoroutines(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	written := writeHugeFrame(dialled)
	read := testwait.Start(func() error {
		_, err := dialled.NextFrame()
		return err
	})
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	var calls []<-chan error
	for i := range repetitions {
		calls = append(calls, testwait.Start(func() error {
			if i%3 == 0 {
				dialled.CloseWrite()
			}
			return dialled.Close()
		}))
	}
	for _, call := range calls {
		require.NoError(t, testwait.Finish(t, call))
	}
	require.ErrorIs(t, testwait.Finish(t, written), transport.ErrClosed)
	require.ErrorIs(t, testwait.Finish(t, read), transport.ErrClosed)
}

// writerWaits checks that a writer blocks while its reader does not read: the writer of many frames
// is never more than maxBufferedChunks frames ahead of the reader.
func writerWaits(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	var written atomic.Int64
	done := testwait.Start(func() error {
		for range manyChunks {
			if err := dialled.WriteFrames(one(chunk)); err != nil {
				return err
			}
			written.Add(1)
		}
		return nil
	})
	dst := make([]byte, len(chunk))
	for read := range int64(manyChunks) {
		require.LessOrEqual(t, written.Load()-read, int64(maxBufferedChunks), "the writer does not wait for the reader")
		_, err := accepted.NextFrame()
		require.NoError(t, err)
		require.NoError(t, accepted.ReadBody(dst))
		if read < int64(maxBufferedChunks) {
			yield()
		}
	}
	require.NoError(t, testwait.Finish(t, done))
}
