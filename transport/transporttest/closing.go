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
	{"DuringNextFrame", closeDuringNextFrame},
	{"DuringWriteFrames", closeDuringWrite},
	{"CloseWriteDuringWriteFrames", closeWriteDuringWrite},
	{"ByPeerDuringWriteFrames", peerClosesDuringWrite},
	{"ByPeerDuringNextFrame", peerClosesDuringRead},
	{"FailsLaterCalls", everythingFailsAfterClose},
	{"FromManyGoroutines", closeFromManyGoroutines},
	{"WriterWaitsForReader", writerWaits},
}

// chunk is sent repeatedly where the contents do not matter.
var chunk = bytes.Repeat([]byte{0xaa}, 64<<10)

// manyChunks of them, 128 MiB, are twice what a transport may buffer. For TCP the kernel alone may
// buffer more than 32 MiB.
const manyChunks = 2048

// maxBufferedChunks is how many chunks a writer may be ahead of its reader.
const maxBufferedChunks = manyChunks / 2

// yield gives other goroutines time to block. Tests must not depend on it; it only makes the tested
// order likely.
func yield() {
	for range 100 {
		runtime.Gosched()
	}
}

// writeHugeFrame starts to write one frame that exceeds all buffers, so that the write blocks until
// the peer reads. It returns a channel that receives the error of the write.
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

// countChunks reads chunks until the connection ends and returns their number, or -1 if the body of
// a chunk is wrong or incomplete.
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

// After the call the caller may change the memory without the peer seeing that.
func closeDuringWrite(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	part := bytes.Clone(chunk)
	written := testwait.Start(func() error { return dialled.WriteFrames(hugeFrame(part)) })
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	yield()
	require.NoError(t, dialled.Close())
	require.ErrorIs(t, testwait.Finish(t, written), transport.ErrClosed)
	clear(part)
	dst := make([]byte, 100)
	for accepted.ReadBody(dst) == nil {
		require.True(t, bytes.Equal(chunk[:len(dst)], dst))
	}
}

func closeWriteDuringWrite(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	written := writeHugeFrame(dialled)
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	yield()
	require.NoError(t, dialled.CloseWrite())
	require.ErrorIs(t, testwait.Finish(t, written), transport.ErrClosed)
	require.NoError(t, accepted.WriteFrames(text("still readable")))
	wantFrame(t, dialled, []byte("still readable"))
	for err == nil {
		err = accepted.ReadBody(make([]byte, len(chunk)))
	}
	require.Equal(t, io.ErrUnexpectedEOF, err)
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
	require.Equal(t, io.EOF, testwait.Finish(t, read))
}

// After Close all calls fail with ErrClosed.
func everythingFailsAfterClose(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	require.NoError(t, accepted.WriteFrames(text("first"), text("second")))
	_, err := dialled.NextFrame()
	require.NoError(t, err)
	require.NoError(t, dialled.Close())
	require.ErrorIs(t, dialled.ReadBody(make([]byte, 5)), transport.ErrClosed)
	require.ErrorIs(t, dialled.WriteFrames(text("x")), transport.ErrClosed)
	require.NoError(t, dialled.Close())

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

// writerWaits compares the progress of both ends: a writer must block once it is maxBufferedChunks
// ahead of its reader.
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
