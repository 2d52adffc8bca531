package transporttest

import (
	"bytes"
	"io"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var closeCases = []testCase{
	{"UnderNextFrame", closeUnderNextFrame},
	{"UnderWriteFrames", closeUnderWrite},
	{"CloseWriteUnderWriteFrames", closeWriteUnderWrite},
	{"OfThePeerUnderWriteFrames", peerClosesUnderWrite},
	{"OfThePeerUnderNextFrame", peerClosesUnderRead},
	{"ThenEverythingFails", everythingFailsAfterClose},
	{"FromManyGoroutines", closeFromManyGoroutines},
	{"WriterWaitsForTheReader", writerWaits},
}

// chunk is sent again and again where the contents do not matter.
var chunk = bytes.Repeat([]byte{0xaa}, 64<<10)

// stretch of them, 128 MiB, are more than a transport may hold on its way, which is
// half as much: of TCP the kernel alone may hold more than 32 MiB.
const stretch = 2048

// ahead is how many chunks a writer may be ahead of its reader.
const ahead = stretch / 2

// yield lets the other goroutines get to where they block. A test must hold
// without it too; it only makes the interesting order the likely one.
func yield() {
	for range 100 {
		runtime.Gosched()
	}
}

// writeEndless writes one frame that cannot end before its reader reads.
func writeEndless(c transport.Conn) <-chan error {
	return patience.Start(func() error { return c.WriteFrames(endless(chunk)) })
}

func endless(part []byte) transport.Frame {
	frame := make(transport.Frame, stretch)
	for i := range frame {
		frame[i] = part
	}
	return frame
}

// drained counts the chunks that come until the connection ends in order.
func drained(c transport.Conn) int {
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

func closeUnderNextFrame(t *testing.T, b Backend) {
	for i := range many {
		dialled, accepted := b.connect(t)
		c := []transport.Conn{dialled, accepted}[i%2]
		read := patience.Start(func() error {
			_, err := c.NextFrame()
			return err
		})
		yield()
		require.NoError(t, c.Close())
		require.ErrorIs(t, patience.Finish(t, read), transport.ErrClosed)
	}
}

// The peer must never see what the caller does to the memory after the call.
func closeUnderWrite(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	part := bytes.Clone(chunk)
	written := patience.Start(func() error { return dialled.WriteFrames(endless(part)) })
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	yield()
	require.NoError(t, dialled.Close())
	require.ErrorIs(t, patience.Finish(t, written), transport.ErrClosed)
	clear(part)
	dst := make([]byte, 100)
	for accepted.ReadBody(dst) == nil {
		require.True(t, bytes.Equal(chunk[:len(dst)], dst))
	}
}

func closeWriteUnderWrite(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	written := writeEndless(dialled)
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	yield()
	require.NoError(t, dialled.CloseWrite())
	require.ErrorIs(t, patience.Finish(t, written), transport.ErrClosed)
	require.NoError(t, accepted.WriteFrames(text("reading goes on")))
	wantFrame(t, dialled, []byte("reading goes on"))
	for err == nil {
		err = accepted.ReadBody(make([]byte, len(chunk)))
	}
	require.Equal(t, io.ErrUnexpectedEOF, err)
}

func peerClosesUnderWrite(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	written := writeEndless(dialled)
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	require.NoError(t, accepted.Close())
	err = patience.Finish(t, written)
	require.Error(t, err)
	require.NotErrorIs(t, err, transport.ErrClosed)
}

func peerClosesUnderRead(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	read := patience.Start(func() error {
		_, err := dialled.NextFrame()
		return err
	})
	yield()
	require.NoError(t, accepted.Close())
	require.Equal(t, io.EOF, patience.Finish(t, read))
}

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
	written := writeEndless(dialled)
	read := patience.Start(func() error {
		_, err := dialled.NextFrame()
		return err
	})
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	var calls []<-chan error
	for i := range many {
		calls = append(calls, patience.Start(func() error {
			if i%3 == 0 {
				dialled.CloseWrite()
			}
			return dialled.Close()
		}))
	}
	for _, call := range calls {
		require.NoError(t, patience.Finish(t, call))
	}
	require.ErrorIs(t, patience.Finish(t, written), transport.ErrClosed)
	require.ErrorIs(t, patience.Finish(t, read), transport.ErrClosed)
}

// writerWaits compares the progress of both ends: a writer that queues what
// nobody reads runs away from its reader.
func writerWaits(t *testing.T, b Backend) {
	dialled, accepted := b.connect(t)
	var written atomic.Int64
	done := patience.Start(func() error {
		for range stretch {
			if err := dialled.WriteFrames(one(chunk)); err != nil {
				return err
			}
			written.Add(1)
		}
		return nil
	})
	dst := make([]byte, len(chunk))
	for read := range int64(stretch) {
		require.LessOrEqual(t, written.Load()-read, int64(ahead), "the writer does not wait for the reader")
		_, err := accepted.NextFrame()
		require.NoError(t, err)
		require.NoError(t, accepted.ReadBody(dst))
		if read < int64(ahead) {
			yield()
		}
	}
	require.NoError(t, patience.Finish(t, done))
}
