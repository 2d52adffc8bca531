package wait

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Reader reads from a socket on behalf of somebody who waits for an answer.
type Reader struct {
	socket  Socket
	raw     syscall.RawConn
	spinner spinner
	attempt func(fd uintptr) bool // these two are methods of it
	look    func() bool

	// Of the call under way.
	fd     int
	dst    []byte
	asleep bool
	n      int
	err    error // of the system call
}

// NewReader returns a Reader of s that spins for so long at most; 0 or less is
// not at all. The error says that s is no socket.
func NewReader(s Socket, spin time.Duration) (*Reader, error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, err
	}
	epoch := time.Now()
	r := &Reader{
		socket: s,
		raw:    raw,
		spinner: spinner{
			bound: spin,
			seat:  process.enter(),
			now:   func() time.Duration { return time.Since(epoch) },
			yield: runtime.Gosched,
		},
	}
	r.attempt, r.look = r.poll, r.read
	return r, nil
}

// Read is that of the socket, for one goroutine at a time: it heeds read
// deadlines and Close, which a spin may delay by its time, and its errors are
// the same. It allocates nothing.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	r.dst, r.asleep = p, false
	err := r.raw.Read(r.attempt)
	r.dst = nil
	switch {
	case err != nil:
		return 0, r.failure(cause(err))
	case r.err != nil:
		return 0, r.failure(os.NewSyscallError("read", r.err))
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}

// poll is called when Read begins and again after each sleep. Where it returns
// false the runtime sleeps until there may be something to read.
func (r *Reader) poll(fd uintptr) bool {
	r.fd = int(fd)
	if r.read() || !r.asleep && r.spinner.find(r.look) {
		r.spinner.seat.came()
		return true
	}
	r.asleep = true
	return false
}

// read asks the kernel, and reports whether it had an answer.
func (r *Reader) read() bool {
	for {
		r.n, r.err = unix.Read(r.fd, r.dst)
		if r.err != unix.EINTR {
			return r.err != unix.EAGAIN
		}
	}
}

// failure looks like an error of the socket's own Read.
func (r *Reader) failure(err error) error {
	local := r.socket.LocalAddr()
	return &net.OpError{Op: "read", Net: local.Network(), Source: local, Addr: r.socket.RemoteAddr(), Err: err}
}

// cause is what package net wrapped in the name of a raw read.
func cause(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}
