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

// refusing is a transport whose listeners cannot be reached, for a reason.
type refusing struct {
	transport.Transport
	reason syscall.Errno
}

func (r refusing) Dial(_ context.Context, addr string) (transport.Conn, error) {
	return nil, &uv.DialError{Addr: addr, Err: &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", r.reason)}}
}

// laned opens a pipe over uv, of the compatible dialect, in which the lanes of each end
// are its own.
func laned(t *testing.T, dials, listens mpt.Lanes) (client, server *pipe.Pipe) {
	t.Helper()
	over := pathNamed("uv+basic+" + pipe.DialectCompatible)
	with := func(l mpt.Lanes) func(*pipe.Options) {
		return func(o *pipe.Options) {
			o.Channels = []pipe.ChannelEntry{{Name: mpt.UVName, Priority: 1, Factory: mpt.New(l)}}
		}
	}
	return connectContexts(t, newContext(t, over, with(dials)), newContext(t, over, with(listens)), over.url)
}

// blames has one end of a pipe say that it could not open lanes, for a reason, and the
// other that its peer did so. Nobody has lost anybody.
func blames(t *testing.T, culprit, other *pipe.Pipe, reason syscall.Errno) {
	t.Helper()
	_, err := culprit.Next(testContext(t))
	require.ErrorIs(t, err, pipe.ErrUnopened)
	require.ErrorIs(t, err, reason)
	require.NotErrorIs(t, err, pipe.ErrPeerLost)
	_, err = other.Next(testContext(t))
	require.ErrorIs(t, err, pipe.ErrPeerClosed)
	require.ErrorContains(t, err, pipe.ErrUnopened.Error())
	require.ErrorContains(t, err, reason.Error())
	require.NotContains(t, err.Error(), pipe.ErrPeerLost.Error())
}

// In the compatible dialect lanes that are not to be had are the end of the pipe. Its
// error is what the system says, at both ends.
func TestLanesThatCannotBeOpened(t *testing.T) {
	plain := mpt.Lanes{Count: 3, Transport: uv.New()}
	for _, reason := range []syscall.Errno{syscall.ECONNREFUSED, syscall.EHOSTUNREACH, syscall.EMFILE} {
		t.Run(reason.Error(), func(t *testing.T) {
			client, server := laned(t, mpt.Lanes{Count: 3, Transport: refusing{uv.New(), reason}}, plain)
			blames(t, client, server, reason)
		})
	}
	t.Run("nobody can listen", func(t *testing.T) {
		elsewhere := mpt.Lanes{Count: 3, Transport: uv.New(), Addr: "192.0.2.1:0"} // no address of this machine
		client, server := laned(t, plain, elsewhere)
		blames(t, server, client, syscall.EADDRNOTAVAIL)
	})
}
