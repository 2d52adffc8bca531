//go:build !linux

package shm

import (
	"context"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Transport is shared memory, which this system does not have in the form that is
// needed: it is not viable. It implements [transport.Transport].
type Transport struct{ settings }

func tryMachine() error {
	return probe.NotSupported("shm", "%s has no abstract sockets and no memfd_create", runtime.GOOS)
}

// Listen fails with the reason that Viable gives.
func (t *Transport) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := checkName(addr); err != nil {
		return nil, err
	}
	return nil, &ListenError{Addr: addr, Err: viable()}
}

// Dial fails with the reason that Viable gives.
func (t *Transport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := checkName(addr); err != nil {
		return nil, err
	}
	return nil, &DialError{Addr: addr, Err: viable()}
}
