package wait_test

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
)

// longBody is longer than what a StreamReader waits for.
const longBody = 1 << 20

func streamReader(t *testing.T) (r *wait.StreamReader, near, far *net.TCPConn) {
	t.Helper()
	_, near, far = pair(t, wait.Config{})
	r, err := wait.NewStreamReader(near)
	require.NoError(t, err)
	return r, near, far
}

// startBody starts a ReadBulk of a long body, which blocks.
func startBody(t *testing.T, r *wait.StreamReader) <-chan error {
	t.Helper()
	return testwait.StartBlocked(t, "ReadBulk", func() error {
		_, err := r.ReadBulk(make([]byte, longBody))
		return err
	})
}

// readSome reads until n bytes have been read.
func readSome(t *testing.T, read func([]byte) (int, error), n int) {
	t.Helper()
	for n > 0 {
		k, err := read(make([]byte, n))
		require.NoError(t, err)
		n -= k
	}
}

// Bodies and short reads in turn all end, also if no more bytes follow.
func TestReadBulk(t *testing.T) {
	r, _, far := streamReader(t)
	for _, n := range []int{1, longBody, 2, 100_000, 1, longBody + 1, 3 * longBody, 1} {
		for range 3 {
			sent := testwait.Start(func() error {
				_, err := far.Write(make([]byte, n+1))
				return err
			})
			readSome(t, r.ReadBulk, n)
			readSome(t, r.Read, 1)
			require.NoError(t, testwait.Finish(t, sent))
		}
		read := testwait.StartBlocked(t, "Read", func() error {
			_, err := r.Read(make([]byte, longBody)) // one byte is enough
			return err
		})
		_, err := far.Write([]byte{1})
		require.NoError(t, err)
		require.NoError(t, testwait.Finish(t, read))
	}
}

// A body of which only a part comes is read up to there, when the stream ends or a deadline passes.
func TestReadBulkEnds(t *testing.T) {
	r, near, far := streamReader(t)
	done := startBody(t, r)
	_, err := far.Write(make([]byte, 100))
	require.NoError(t, err)
	require.NoError(t, near.SetReadDeadline(time.Unix(1, 0)))
	require.ErrorIs(t, testwait.Finish(t, done), os.ErrDeadlineExceeded)
	require.NoError(t, near.SetReadDeadline(time.Time{}))
	readSome(t, r.Read, 100)

	done = startBody(t, r)
	_, err = far.Write(make([]byte, 100))
	require.NoError(t, err)
	require.NoError(t, far.CloseWrite())
	require.NoError(t, testwait.Finish(t, done))
	_, err = r.ReadBulk(make([]byte, longBody))
	require.Equal(t, io.EOF, err)
	require.NoError(t, near.Close())
	_, err = r.ReadBulk(make([]byte, longBody))
	require.ErrorIs(t, err, net.ErrClosed)
}
