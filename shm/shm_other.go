//go:build !linux

package shm

import (
	"context"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// reactors are for connections, of which there are none here.
type reactors struct{}

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
