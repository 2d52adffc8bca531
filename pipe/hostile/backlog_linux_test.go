package hostile_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// fullBacklog returns an address at which dialling blocks, because the backlog of its listener is
// full. Linux drops connections beyond the backlog; other systems may refuse them.
func fullBacklog(t testing.TB) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { syscall.Close(fd) })
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, syscall.Listen(fd, 0))
	bound, err := syscall.Getsockname(fd)
	require.NoError(t, err)
	addr := fmt.Sprintf("127.0.0.1:%d", bound.(*syscall.SockaddrInet4).Port)
	overTCP.dial(t, addr) // the one that fits
	return addr
}

func TestAnswerWithAddressThatNeverAnswers(t *testing.T) {
	t.Parallel()
	v := newVictim(t, shortHandshakeTimeout)
	l := newRogueListener(t)
	addr := fullBacklog(t)
	d := dialWithAnswer(v, l, func(a *wire.BrochureAnswer) { a.Address = addr })
	requireDialFailed(t, l, d, pipe.ErrHandshakeTimeout)
	require.ErrorContains(t, d.err, "timed out while opening the other connections: connection ")
	v.requireIdle(t)
}

func TestDialAddressThatNeverAnswers(t *testing.T) {
	t.Parallel()
	v := newVictim(t, shortHandshakeTimeout)
	_, err := v.Dial(t.Context(), "uv://"+fullBacklog(t))
	requireError(t, err, "", pipe.ErrHandshake, pipe.ErrHandshakeTimeout)
	require.ErrorContains(t, err, "handshake timed out while dialling: i/o timeout")
	v.requireIdle(t)
}
