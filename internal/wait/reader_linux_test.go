package wait_test

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/wait"
)

// notASocket is a connection without a descriptor.
type notASocket struct{ *net.TCPConn }

func (notASocket) SyscallConn() (syscall.RawConn, error) { return nil, syscall.EINVAL }

func TestNotASocket(t *testing.T) {
	_, err := wait.NewReader(notASocket{}, wait.Config{Spin: wait.Spin})
	require.ErrorIs(t, err, syscall.EINVAL)
}
