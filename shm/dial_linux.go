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

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Dial connects to the listener with that name; the two ends share memory when it returns. ctx
// bounds the call, not the connection. If ctx has ended before the call, Dial returns the error of
// ctx. The error is an *AddrError if the name is empty or invalid, and otherwise a *DialError,
// which matches the error of ctx if ctx ended during the call.
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
	failpoint.Here()
	socket, err := d.DialUnix(ctx, "unix", nil, socketAddr(name))
	if err != nil {
		return nil, err
	}
	h := newHandshake(t, socket)
	h.dialled = true
	c, err := h.dial(ctx, name)
	if err != nil {
		h.abort()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, &HandshakeError{Peer: name, Err: err}
	}
	return c, nil
}

// dial performs the client's half of the handshake on h's connected socket and returns the
// connection, which takes over the resources of h. name is that of the listener. If ctx ends first,
// the error is that of ctx. After an error the caller calls h.abort.
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
		err = h.receiveMemory()
	}
	if errors.Is(err, errRejected) {
		text := make([]byte, maxReason)
		if n, readErr := h.socket.Read(text); readErr != nil {
			err = fmt.Errorf("the listening end refuses: %w", readErr)
		} else {
			err = fmt.Errorf("the listening end refuses: %q", text[:n])
		}
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		err = fmt.Errorf("the listening end hung up during the handshake: %w", err)
	}
	if err == nil {
		err = h.reserveInbox()
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

// tryMachine returns nil if this process can open a connection through shared memory, and otherwise
// the reason why not. It performs most of a handshake between two ends in this process, so that it
// meets the limits of a first connection, and opens a listener that accepts nothing. It releases
// all that it has acquired.
func tryMachine() error {
	l, err := net.ListenUnix("unix", socketAddr(""))
	if err != nil {
		return err
	}
	defer l.Close()
	there, here, err := socketPair()
	if err != nil {
		return err
	}
	t := New()
	giving, taking := newHandshake(t, there), newHandshake(t, here)
	defer giving.abort()
	defer taking.abort()
	if err := giving.share(); err != nil {
		return err
	}
	return taking.receiveMemory()
}

// socketPair returns two connections that are the ends of one new, unnamed Unix socket. The caller
// closes both. After an error none is open.
func socketPair() (one, other *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	if one, err = connOf(fds[0]); err != nil {
		_ = unix.Close(fds[1])
		return nil, nil, err
	}
	if other, err = connOf(fds[1]); err != nil {
		one.Close()
		return nil, nil, err
	}
	return one, other, nil
}

// connOf returns a connection of the Unix socket with the descriptor fd, which must be that of a
// Unix socket. The connection has a descriptor of its own; connOf closes fd, also if it fails.
func connOf(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}
