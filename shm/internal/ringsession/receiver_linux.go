package ringsession

import (
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

// receiver reads doorbells, and the files attached to them, from a Unix socket without allocating.
// One goroutine at a time uses it.
type receiver struct {
	raw     syscall.RawConn
	attempt func(fd uintptr) bool // callback for raw.Read
	message *segment.Receiver

	// Arguments and results of attempt.
	buf []byte
	n   int
	err error
}

func newReceiver(sock *net.UnixConn) (*receiver, error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &receiver{raw: raw, message: segment.NewReceiver()}
	r.attempt = func(fd uintptr) bool {
		r.n, r.err = r.message.Receive(fd, r.buf)
		return r.err != unix.EAGAIN
	}
	return r, nil
}

// receive blocks until bytes arrive and reads them into p, which must not be empty. n is their
// number, 0 at the end of the socket. oob holds the control messages that came with the bytes; it
// is memory of r that the next call overwrites. flags are those of recvmsg. The error is that of
// the socket. receive may keep p until the next call, but does not access it.
func (r *receiver) receive(p []byte) (n int, oob []byte, flags int, err error) {
	r.buf = p
	if err := r.raw.Read(r.attempt); err != nil {
		return 0, nil, 0, err
	}
	if r.err != nil {
		return 0, nil, 0, os.NewSyscallError("recvmsg", r.err)
	}
	oob, flags = r.message.Control()
	return r.n, oob, flags, nil
}
