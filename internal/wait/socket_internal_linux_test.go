package wait

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// socketPair returns a Reader with the arbiter a, and the other end of its socket.
func socketPair(t *testing.T, a *arbiter) (*Reader, net.Conn) {
	near, far := sockets(t)
	r, err := NewReader(near, Config{Spin: time.Minute})
	require.NoError(t, err)
	r.spinner.registration = &registration{arbiter: a}
	return r, far
}

// sockets returns the two ends of a connection, which are closed when the test ends.
func sockets(t *testing.T) (near, far *net.TCPConn) { return socketsWithBuffer(t, 0) }

// socketsWithBuffer is sockets with a receive buffer of that many bytes at near, 0 for the usual one.
func socketsWithBuffer(t *testing.T, buffer int) (near, far *net.TCPConn) {
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if buffer > 0 {
			_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, buffer) })
		}
		return err
	}}
	l, err := c.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dialled, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	accepted, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, c := range []net.Conn{dialled, accepted} {
			if err := c.Close(); !errors.Is(err, net.ErrClosed) {
				require.NoError(t, err)
			}
		}
	})
	return accepted.(*net.TCPConn), dialled.(*net.TCPConn)
}

// Of two sockets with input in turn, a spin on one ends when the other has some, if the process has one
// processor. With more it does not begin.
func TestTwoSocketsSpin(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	a := &arbiter{}
	one, farOne := socketPair(t, a)
	two, farTwo := socketPair(t, a)
	p := make([]byte, 1)
	for range exclusiveAfter + 2 {
		for _, s := range []struct {
			near *Reader
			far  net.Conn
		}{{one, farOne}, {two, farTwo}} {
			_, err := s.far.Write(p)
			require.NoError(t, err)
			_, err = s.near.Read(p)
			require.NoError(t, err)
		}
	}
	require.False(t, one.spinner.otherHasInput())
	_, err := farTwo.Write(p)
	require.NoError(t, err)
	require.Eventually(t, one.spinner.otherHasInput, time.Minute, time.Millisecond)
	polls := 0
	require.False(t, one.spinner.poll(func() bool { polls++; return false }), "a minute would be the bound")
	require.LessOrEqual(t, polls, 1)
	_, err = two.Read(p)
	require.NoError(t, err)
	require.False(t, one.spinner.otherHasInput())

	runtime.GOMAXPROCS(2)
	require.True(t, one.spinner.otherHasInput(), "it cannot be asked")
	for range exclusiveAfter + 1 {
		one.spinner.registration.arrived()
	}
	require.False(t, one.spinner.otherHasInput(), "no other has input")
}

// While bytes arrive slowly, each arrival ends a ReadBulk that has blocked. The time that it blocks
// determines whether they do.
func TestSlowBody(t *testing.T) {
	near, far := sockets(t)
	r, err := NewStreamReader(near)
	require.NoError(t, err)
	r.slow = true
	for range 3 {
		done := testwait.StartBlocked(t, "ReadBulk", func() error {
			_, err := r.ReadBulk(make([]byte, 2*quietBytes))
			return err
		})
		timer := time.NewTimer(2 * slowArrival)
		<-timer.C // a time that has passed, and no synchronization
		_, err = far.Write([]byte{1})
		require.NoError(t, err)
		require.NoError(t, testwait.Finish(t, done))
		require.True(t, r.slow)
	}
}

// A SocketPoller that has read and polled blocks until one byte arrives, although few bytes wake no thread while
// it reads, and its spins see one byte.
func TestPollerSeesOneByte(t *testing.T) {
	for name, c := range map[string]Config{"blocks": {}, "spins": {Spin: time.Minute}, "busy": {Busy: true}} {
		t.Run(name, func(t *testing.T) {
			near, far := sockets(t)
			p, err := NewSocketPoller(near, c)
			require.NoError(t, err)
			for range exclusiveAfter + 10 {
				done := testwait.Start(func() error { return p.Wait(func() bool { return false }) })
				_, err := far.Write([]byte{1})
				require.NoError(t, err)
				require.NoError(t, testwait.Finish(t, done))
				n, err := p.TryRead(make([]byte, 2))
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.Equal(t, quietBytes, p.low.bytes)
			}
		})
	}
}

// A SocketPoller that has read much at once is woken for one byte while it blocks, and for fewer arrivals than
// before while it does not.
func TestPollerOfLongMessages(t *testing.T) {
	near, far := socketsWithBuffer(t, 1<<20)
	p, err := NewSocketPoller(near, Config{})
	require.NoError(t, err)
	wait := func() error { return p.Wait(func() bool { return false }) }
	for _, c := range []struct{ write, low int }{{quietBytes, quietBytes}, {2 * quietBytes, quietBytes}, {1, quietLong}} {
		done := testwait.StartBlocked(t, "Wait", wait)
		_, err := far.Write(make([]byte, c.write))
		require.NoError(t, err)
		require.NoError(t, testwait.Finish(t, done))
		require.Equal(t, c.low, p.low.bytes)
		require.Eventually(t, func() bool {
			n := 0
			require.NoError(t, p.raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }))
			require.NoError(t, err)
			return n == c.write
		}, time.Minute, time.Millisecond)
		n, err := p.TryRead(make([]byte, c.write))
		require.NoError(t, err)
		require.Equal(t, c.write, n)
	}
}

// The error of a connection that was reset is that of TryRead, wherever Wait finds it.
func TestPollerKeepsReset(t *testing.T) {
	for name, c := range map[string]Config{"blocks": {}, "spins": {Spin: time.Minute}, "busy": {Busy: true}} {
		for _, before := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", before Wait ", before), func(t *testing.T) {
				near, far := sockets(t)
				p, err := NewSocketPoller(near, c)
				require.NoError(t, err)
				for range exclusiveAfter + 1 { // so that it may spin
					p.registration.arrived()
				}
				require.NoError(t, far.SetLinger(0))
				wait := func() error { return p.Wait(func() bool { return false }) }
				if before {
					require.NoError(t, far.Close())
					require.NoError(t, wait())
				} else {
					done := testwait.Start(wait)
					require.NoError(t, far.Close())
					require.NoError(t, testwait.Finish(t, done))
				}
				require.True(t, hasInput(uintptr(p.registration.fd.Load())))
				_, err = p.TryRead(make([]byte, 1))
				require.ErrorIs(t, err, syscall.ECONNRESET)
			})
		}
	}
}

// A thread is woken for one byte where one is enough, and only for more where a body needs more.
func TestBodyWaitsForMore(t *testing.T) {
	near, far := sockets(t)
	r, err := NewStreamReader(near)
	require.NoError(t, err)
	for _, c := range []struct {
		method string
		read   func([]byte) (int, error)
		size   int
		wakes  int // from how many bytes on
	}{
		{"Read", r.Read, 10 * quietBytes, 1}, {"ReadBulk", r.ReadBulk, 10 * quietBytes, quietBytes},
		{"ReadBulk", r.ReadBulk, 100, 100}, {"Read", r.Read, 100, 1},
	} {
		r.slow = false
		done := testwait.StartBlocked(t, c.method, func() int {
			n, _ := c.read(make([]byte, c.size))
			return n
		})
		require.NoError(t, r.raw.Control(func(fd uintptr) {
			n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT)
			require.NoError(t, err)
			require.Equal(t, c.wakes, max(n, 1), "0 means 1")
		}))
		_, err := far.Write(make([]byte, c.wakes))
		require.NoError(t, err)
		n := testwait.Finish(t, done)
		require.Positive(t, n)
		_, err = io.ReadFull(r, make([]byte, c.wakes-n)) // it may return early
		require.NoError(t, err)
	}
}
