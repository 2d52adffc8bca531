package wait_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
)

func never() bool { return false }

// withEachPoller runs test with a SocketPoller of near for each of configs.
func withEachPoller(t *testing.T, test func(t *testing.T, p *wait.SocketPoller, near, far *net.TCPConn)) {
	for name, c := range configs {
		t.Run(name, func(t *testing.T) {
			_, near, far := pair(t, c)
			p, err := wait.NewSocketPoller(near, c)
			require.NoError(t, err)
			test(t, p, near, far)
		})
	}
}

func startWaiting(p *wait.SocketPoller) <-chan error {
	return testwait.Start(func() error { return p.Wait(never) })
}

// Wait returns when bytes have arrived, at the end of the stream, and after Wake. TryRead does not block.
func TestSocketPollerWaits(t *testing.T) {
	withEachPoller(t, func(t *testing.T, p *wait.SocketPoller, _, far *net.TCPConn) {
		buf := make([]byte, 8)
		for range 100 {
			n, err := p.TryRead(buf)
			require.NoError(t, err)
			require.Zero(t, n)
			done := startWaiting(p)
			_, err = far.Write([]byte("hello"))
			require.NoError(t, err)
			for n == 0 { // Wait may return early
				require.NoError(t, <-done)
				n, err = p.TryRead(buf)
				require.NoError(t, err)
				done = startWaiting(p)
				p.Wake()
			}
			require.NoError(t, <-done)
			require.Equal(t, "hello", string(buf[:n]))
		}
		done := startWaiting(p)
		p.Wake()
		require.NoError(t, <-done)
		require.NoError(t, far.Close())
		var err error
		for err == nil {
			require.NoError(t, p.Wait(never))
			_, err = p.TryRead(buf)
		}
		require.Equal(t, io.EOF, err)
	})
}

// Wait observes a read deadline, also one that is set while Wake has made it return, and Close.
func TestSocketPollerDeadline(t *testing.T) {
	withEachPoller(t, func(t *testing.T, p *wait.SocketPoller, near, _ *net.TCPConn) {
		for range 100 {
			done := startWaiting(p)
			require.NoError(t, p.SetReadDeadline(time.Now().Add(time.Hour)))
			p.Wake()
			require.NoError(t, <-done)
		}
		done := testwait.Start(func() error {
			for {
				if err := p.Wait(never); err != nil {
					return err
				}
			}
		})
		p.Wake()
		require.NoError(t, p.SetReadDeadline(time.Unix(1, 0)))
		require.ErrorIs(t, <-done, os.ErrDeadlineExceeded)
		_, err := p.TryRead(make([]byte, 1))
		require.NoError(t, err, "it does not block")

		require.NoError(t, p.SetReadDeadline(time.Time{}))
		done = testwait.Start(func() error {
			for {
				if err := p.Wait(never); err != nil {
					return err
				}
			}
		})
		require.NoError(t, near.Close())
		require.ErrorIs(t, <-done, net.ErrClosed)
		_, err = p.TryRead(make([]byte, 1))
		require.ErrorIs(t, err, net.ErrClosed)
		opErr, ok := errors.AsType[*net.OpError](err)
		require.True(t, ok)
		require.Equal(t, "read", opErr.Op)
	})
}

// Spin finds bytes that arrive, and lets only one goroutine spin.
func TestSpin(t *testing.T) {
	_, near, far := pair(t, wait.Config{})
	p, err := wait.NewSocketPoller(near, wait.Config{Spin: time.Hour})
	require.NoError(t, err)
	for range 100 {
		_, err := far.Write([]byte("x"))
		require.NoError(t, err)
		n, nested := 0, false
		require.True(t, p.Spin(func() bool {
			nested = nested || p.Spin(func() bool { return true }, true)
			n, err = p.TryRead(make([]byte, 8))
			return n > 0 || err != nil
		}, true))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.False(t, nested)
	}
}
