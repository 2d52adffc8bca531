//go:build !linux

package shm

import (
	"context"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/internal/probe"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Transport is the transport through shared memory, which does not work on this system. It
// implements [transport.Transport].
type Transport struct{ settings }

func tryMachine() error {
	return probe.NotSupported("shm", "%s has no abstract sockets and no memfd_create", runtime.GOOS)
}

// Listen always fails: with the error of ctx if ctx has ended, with an *AddrError if addr is
// invalid, and otherwise with a *ListenError that wraps the error of Viable.
func (t *Transport) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := checkName(addr); err != nil {
		return nil, err
	}
	return nil, &ListenError{Addr: addr, Err: viable()}
}

// Dial always fails: with the error of ctx if ctx has ended, with an *AddrError if addr is invalid,
// and otherwise with a *DialError that wraps the error of Viable.
func (t *Transport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := checkName(addr); err != nil {
		return nil, err
	}
	return nil, &DialError{Addr: addr, Err: viable()}
}
