package pipe_test

import (
	"context"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// unreachableLanes is a transport whose Dial fails with an error of the system.
type unreachableLanes struct {
	transport.Transport
	reason syscall.Errno
}

func (r unreachableLanes) Dial(_ context.Context, addr string) (transport.Conn, error) {
	return nil, &uv.DialError{Addr: addr, Err: &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", r.reason)}}
}

// connectLanes opens a pipe over uv in the compatible dialect. Its only channel is mpt_uv, with the
// lanes dials at the client and listens at the server. Both ends are closed at the end of the test.
func connectLanes(t *testing.T, dials, listens mpt.Lanes) (client, server *pipe.Pipe) {
	t.Helper()
	over := pathNamed("uv+basic+compatible")
	with := func(l mpt.Lanes) func(*pipe.Options) {
		return func(o *pipe.Options) {
			o.Channels = []pipe.ChannelEntry{{Name: mpt.UVName, Priority: 1, Factory: mpt.New(l)}}
		}
	}
	return connectContexts(t, newContext(t, over, with(dials)), newContext(t, over, with(listens)), over.url)
}

// requireUnopened requires that Next of failed returns ErrUnopened with reason, and that Next of
// other returns ErrPeerClosed with both texts. Neither error may report a lost peer.
func requireUnopened(t *testing.T, failed, other *pipe.Pipe, reason syscall.Errno) {
	t.Helper()
	_, err := failed.Next(testContext(t))
	require.ErrorIs(t, err, pipe.ErrUnopened)
	require.ErrorIs(t, err, reason)
	require.NotErrorIs(t, err, pipe.ErrPeerLost)
	_, err = other.Next(testContext(t))
	require.ErrorIs(t, err, pipe.ErrPeerClosed)
	require.ErrorContains(t, err, pipe.ErrUnopened.Error())
	require.ErrorContains(t, err, reason.Error())
	require.NotContains(t, err.Error(), pipe.ErrPeerLost.Error())
}

// TestLanesCannotBeOpened checks that in the compatible dialect a pipe whose lanes cannot be opened
// fails. The error at each end contains the system's error.
func TestLanesCannotBeOpened(t *testing.T) {
	t.Parallel()
	plain := mpt.Lanes{Count: 3, Transport: uv.New()}
	for _, reason := range []syscall.Errno{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.EMFILE} {
		t.Run(reason.Error(), func(t *testing.T) {
			client, server := connectLanes(t, mpt.Lanes{Count: 3, Transport: unreachableLanes{uv.New(), reason}}, plain)
			requireUnopened(t, client, server, reason)
		})
	}
	t.Run("cannot listen", func(t *testing.T) {
		elsewhere := mpt.Lanes{Count: 3, Transport: uv.New(), Addr: "192.0.2.1:0"} // not an address of this machine
		client, server := connectLanes(t, plain, elsewhere)
		requireUnopened(t, server, client, syscall.EADDRNOTAVAIL)
	})
}
