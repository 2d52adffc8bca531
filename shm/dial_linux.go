package shm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/step"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Dial connects to the listener with that name. When it returns the two ends
// share memory.
func (t *Transport) Dial(ctx context.Context, name string) (transport.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	if name == "" {
		return nil, &AddrError{Addr: name, Reason: "no name to dial"}
	}
	if err := viable(); err != nil {
		return nil, &DialError{Addr: name, Err: err}
	}
	c, err := t.dial(ctx, name)
	if err != nil {
		return nil, &DialError{Addr: name, Err: err}
	}
	return c, nil
}

func (t *Transport) dial(ctx context.Context, name string) (transport.Conn, error) {
	var d net.Dialer
	step.Here()
	socket, err := d.DialUnix(ctx, "unix", nil, socketAddr(name))
	if err != nil {
		return nil, err
	}
	h := newHandshake(t, socket)
	h.dialled = true
	c, err := h.dial(ctx, name)
	if err != nil {
		h.undo()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, &HandshakeError{Peer: name, Err: err}
	}
	return c, nil
}

// dial does the handshake of the end that dialled, until ctx ends.
func (h *handshake) dial(ctx context.Context, name string) (*conn, error) {
	interrupted := make(chan struct{})
	interrupt := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		h.socket.SetDeadline(past)
	})
	err := h.identify()
	if err == nil {
		err = h.share()
	}
	if err == nil {
		err = h.take()
	}
	if errors.Is(err, errRefused) {
		err = h.refusal()
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		err = fmt.Errorf("the listening end hung up, and knows why: %w", err)
	}
	if err == nil {
		err = h.complete()
	}
	if !interrupt() {
		<-interrupted
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	h.socket.SetDeadline(time.Time{})
	return newConn(h, processName(os.Getpid()), name)
}
