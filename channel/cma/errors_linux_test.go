package cma

import (
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
)

// An error of a read matches channel.ErrForbidden or channel.ErrCopy, depending on the system's
// error, which it also matches. ESRCH matches neither, because the connections to a process that is
// gone end too.
func TestKindsOfReadErrors(t *testing.T) {
	for reason, want := range map[error]error{
		syscall.EPERM:    channel.ErrForbidden,
		syscall.EACCES:   channel.ErrForbidden,
		syscall.ENOSYS:   channel.ErrForbidden,
		syscall.EFAULT:   channel.ErrCopy,
		syscall.ENOMEM:   channel.ErrCopy,
		syscall.EIO:      channel.ErrCopy,
		io.ErrNoProgress: channel.ErrCopy,
		syscall.ESRCH:    nil,
	} {
		err := wrapError("worker1", fmt.Errorf("tensor 3: %w", &ReadError{PID: 1, Err: reason}))
		require.ErrorIs(t, err, reason)
		for _, kind := range []error{channel.ErrForbidden, channel.ErrCopy} {
			if kind == want {
				require.ErrorIs(t, err, kind, "%v", reason)
			} else {
				require.NotErrorIs(t, err, kind, "%v", reason)
			}
		}
	}
}
