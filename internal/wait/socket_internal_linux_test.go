package wait

import (
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// socketPair returns a Reader with the arbiter a, and the other end of its socket.
func socketPair(t *testing.T, a *arbiter) (*Reader, net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	far, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	near, err := l.Accept()
	require.NoError(t, err)
	r, err := NewReader(near.(*net.TCPConn), Config{Spin: time.Minute})
	require.NoError(t, err)
	r.spinner.registration = &registration{arbiter: a}
	t.Cleanup(func() {
		require.NoError(t, far.Close())
		require.NoError(t, near.Close())
	})
	return r, far
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
