package uv_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// option returns the value of the socket option name, at level, of c's TCP socket. An error ends
// the test.
func option(t *testing.T, c transport.Conn, level, name int) int {
	t.Helper()
	rc, err := uv.TCPConn(c).SyscallConn()
	require.NoError(t, err)
	var value int
	var gerr error
	require.NoError(t, rc.Control(func(fd uintptr) {
		value, gerr = unix.GetsockoptInt(int(fd), level, name)
	}))
	require.NoError(t, gerr)
	return value
}

func TestSocketOptions(t *testing.T) {
	type options struct{ noDelay, keepAlive, idle, interval, count, userTimeout int }
	for _, tc := range []struct {
		name string
		opts []uv.Option
		want options
	}{
		{"defaults", nil, options{1, 1, 15, 5, 3, 0}},
		{
			"chosen", []uv.Option{
				uv.WithKeepAlive(net.KeepAliveConfig{Enable: true, Idle: 7 * time.Second, Interval: 1500 * time.Millisecond, Count: 9}),
				uv.WithUserTimeout(2500 * time.Millisecond),
			}, options{1, 1, 7, 2, 9, 2500},
		},
		{"short timeout", []uv.Option{uv.WithUserTimeout(time.Microsecond)}, options{1, 1, 15, 5, 3, 1}},
		{"off", []uv.Option{uv.WithKeepAlive(net.KeepAliveConfig{})}, options{noDelay: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := uv.New(tc.opts...)
			l := listen(t, tr, "127.0.0.1")
			dialled, accepted := connect(t, tr, l, l.Addr())
			for _, c := range []transport.Conn{dialled, accepted} {
				got := options{
					noDelay:     option(t, c, unix.IPPROTO_TCP, unix.TCP_NODELAY),
					keepAlive:   option(t, c, unix.SOL_SOCKET, unix.SO_KEEPALIVE),
					userTimeout: option(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT),
				}
				if got.keepAlive != 0 {
					got.idle = option(t, c, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
					got.interval = option(t, c, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL)
					got.count = option(t, c, unix.IPPROTO_TCP, unix.TCP_KEEPCNT)
				}
				require.Equal(t, tc.want, got)
			}
		})
	}
}

// TestAckTimeout checks that WithAckTimeout returns a transport whose connections have the new
// TCP_USER_TIMEOUT and the original's keepalive, and that the original does not change.
func TestAckTimeout(t *testing.T) {
	original := uv.New(uv.WithKeepAlive(net.KeepAliveConfig{Enable: true, Idle: 7 * time.Second}), uv.WithUserTimeout(time.Second))
	for tr, want := range map[transport.Transport]int{original.WithAckTimeout(2 * time.Second): 2000, original: 1000} {
		l := listen(t, tr.(*uv.Transport), "127.0.0.1")
		dialled, accepted := connect(t, tr.(*uv.Transport), l, l.Addr())
		for _, c := range []transport.Conn{dialled, accepted} {
			require.Equal(t, want, option(t, c, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT))
			require.Equal(t, 7, option(t, c, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE))
		}
	}
}

// TestCancelledDial checks that Dial returns when its context is cancelled while a listener does
// not answer, because its queue is full.
func TestCancelledDial(t *testing.T) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer l.Close()
	rc, err := l.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, rc.Control(func(fd uintptr) { err = unix.Listen(int(fd), 0) }))
	require.NoError(t, err)

	tr := uv.New()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const calls = 4
	failed := make(chan error, calls)
	for range calls {
		go func() {
			c, err := tr.Dial(ctx, l.Addr().String())
			if err == nil {
				defer c.Close()
				<-ctx.Done()
			}
			failed <- err
		}()
	}
	cancel()
	stuck := 0
	for range calls {
		if err := <-failed; err != nil {
			require.ErrorIs(t, err, context.Canceled)
			stuck++
		}
	}
	require.NotZero(t, stuck)
}
