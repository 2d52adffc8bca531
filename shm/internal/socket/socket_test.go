package socket_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/socket"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestRetry(t *testing.T) {
	other := errors.New("other")
	for _, c := range []struct {
		failures int
		then     error
		want     error
		calls    int
	}{
		{0, nil, nil, 1},
		{0, other, other, 1},
		{1, nil, nil, 2},
		{3, other, other, 4},
		{socket.MaxRetries, nil, nil, socket.MaxRetries + 1},
		{socket.MaxRetries + 1, nil, unix.ENOBUFS, socket.MaxRetries + 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls, began := 0, time.Now()
			err := socket.Retry(func() error {
				if calls++; calls <= c.failures {
					return fmt.Errorf("send: %w", unix.ENOBUFS)
				}
				return c.then
			})
			require.ErrorIs(t, err, c.want)
			require.Equal(t, c.calls, calls)
			require.Equal(t, time.Duration(calls-1)*time.Millisecond, time.Since(began))
		})
	}
}

// pair returns the two ends of a Unix socket.
func pair(t *testing.T) (one, other *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	var ends []*net.UnixConn
	for _, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		t.Cleanup(func() { c.Close() })
		ends = append(ends, c.(*net.UnixConn))
	}
	return ends[0], ends[1]
}

func TestSendFile(t *testing.T) {
	one, other := pair(t)
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, socket.Send(one, []byte("with"), file, time.Hour))
	require.NoError(t, socket.Send(one, []byte("without"), nil, time.Hour))

	p, rights := make([]byte, 4), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := other.ReadMsgUnix(p, rights)
	require.NoError(t, err)
	require.Equal(t, "with", string(p[:n]))
	messages, err := unix.ParseSocketControlMessage(rights[:oobn])
	require.NoError(t, err)
	require.Len(t, messages, 1)
	fds, err := unix.ParseUnixRights(&messages[0])
	require.NoError(t, err)
	received := os.NewFile(uintptr(fds[0]), "received")
	defer received.Close()
	sent, err := file.Stat()
	require.NoError(t, err)
	got, err := received.Stat()
	require.NoError(t, err)
	require.True(t, os.SameFile(sent, got))

	n, oobn, _, _, err = other.ReadMsgUnix(make([]byte, 10), rights)
	require.NoError(t, err)
	require.Equal(t, len("without"), n)
	require.Zero(t, oobn)
}

// Send to a peer that does not read fails after the timeout. The timeout does not apply to later
// writes.
func TestSendTimesOut(t *testing.T) {
	one, other := pair(t)
	err := error(nil)
	for err == nil {
		err = socket.Send(one, make([]byte, 64<<10), nil, 10*time.Millisecond)
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, other.Close())
	_, err = one.Write([]byte("later"))
	require.ErrorIs(t, err, unix.EPIPE)
}
