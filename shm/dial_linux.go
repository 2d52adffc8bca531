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
// bounds the call only. If ctx has ended before the call, Dial returns the error of ctx. The error
// is an *AddrError if the name is invalid, and otherwise a *DialError.
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

// dial performs the client's half of the handshake on the connected socket, until ctx ends, and
// returns the connection. name is that of the listener. The error is that of ctx if ctx has ended.
// After an error the caller calls h.abort.
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

// tryMachine returns the reason why this process cannot open a connection, or nil. It acquires all
// that a first connection needs, so that it meets the same limits, and releases it: one end shares
// its memory with another one in this process. Its listener accepts nothing, since other processes
// could dial it.
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

// socketPair returns the two ends of an unnamed Unix socket. The caller closes both. After an error
// none is open.
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

// connOf returns the connection of the socket with the descriptor fd. It takes ownership of fd,
// which is closed also if connOf fails. fd must be that of a Unix socket.
func connOf(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}
