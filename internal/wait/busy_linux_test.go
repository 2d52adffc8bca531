package wait

import (
	"io"
	"net"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// Busy polling in a process with one processor keeps that neither from goroutines nor from the
// network poller of the runtime.
func TestBusyPollingWithOneProcessor(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	w := NewBusyWaiter(func() bool { return false }, func() {})
	w.Begin()
	defer w.End()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer near.Close()
	far, err := l.Accept()
	require.NoError(t, err)
	echoed := testwait.Start(func() error {
		_, err := io.Copy(far, far)
		return err
	})
	for range 100 {
		_, err = near.Write([]byte("x"))
		require.NoError(t, err)
		_, err = near.Read(make([]byte, 1))
		require.NoError(t, err)
	}
	require.NoError(t, near.Close())
	require.NoError(t, testwait.Finish(t, echoed))
	require.NoError(t, far.Close())
}

// A visit lets the goroutines run whose sockets have input.
func TestVisitAsksForInput(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	near, far, err := os.Pipe()
	require.NoError(t, err)
	defer near.Close()
	defer far.Close()
	var v visitor
	defer v.close()
	returned := 0
	for range 20 { // another thread of the runtime may have the input, and be interrupted, but not each time
		read := testwait.StartBlocked(t, "Read", func() error {
			_, err := near.Read(make([]byte, 1))
			return err
		})
		_, err := far.Write([]byte("x"))
		require.NoError(t, err)
		v.visit()
		for range 10 {
			runtime.Gosched()
		}
		returned += len(read)
		require.NoError(t, testwait.Finish(t, read))
	}
	require.Greater(t, returned, 10, "reads that have returned after the visit")
}
