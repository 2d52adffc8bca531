package shm

import (
	"io"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// starve has the system lack the memory for a doorbell of c so many times.
func starve(c *conn, times int) {
	c.press = func(fd uintptr) {
		press(fd, func(fd uintptr) error {
			if times--; times >= 0 {
				return unix.ENOBUFS
			}
			return sendDoorbell(fd)
		})
	}
}

// sleeping returns what a reader at an end gets, once it sleeps.
func sleeping(c *conn) <-chan error {
	read := patience.Start(func() error {
		_, err := c.NextFrame()
		return err
	})
	for c.mine.word().Load()&readerSleeps == 0 {
		runtime.Gosched()
	}
	return read
}

// A doorbell for which the system has no memory is rung when it has.
func TestShortageOfDoorbells(t *testing.T) {
	leakcheck.Check(t)
	ends, _ := inspected(t)
	starve(ends[0], shortages-1)
	read := sleeping(ends[1])
	require.NoError(t, ends[0].WriteFrames(transport.Frame{[]byte("wake up")}))
	require.NoError(t, patience.Finish(t, read))
}

// Where it never has the connection ends, at both ends.
func TestNoMemoryForADoorbell(t *testing.T) {
	leakcheck.Check(t)
	ends, _ := inspected(t)
	starve(ends[0], shortages)
	read := sleeping(ends[1])
	require.NoError(t, ends[0].WriteFrames(transport.Frame{}))
	require.NoError(t, patience.Finish(t, read), "it was in the ring")
	_, err := ends[0].NextFrame()
	require.Equal(t, io.EOF, err)
	_, err = ends[1].NextFrame()
	require.Equal(t, io.EOF, err)
	<-ends[0].left
	require.ErrorIs(t, ends[0].WriteFrames(transport.Frame{}), syscall.EPIPE)
}
