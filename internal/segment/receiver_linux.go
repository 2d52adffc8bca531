package segment

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Receiver reads messages of a Unix socket with space for one file each. Unlike
// net.UnixConn.ReadMsgUnix it does not allocate an address for each message. One goroutine at a
// time uses it.
type Receiver struct {
	message unix.Msghdr
	piece   unix.Iovec
	control []byte
}

// NewReceiver returns a Receiver, which can be used with any Unix socket.
func NewReceiver() *Receiver { return &Receiver{control: make([]byte, unix.CmsgSpace(4))} }

// Receive reads from the socket fd into p, which must not be empty, and returns the number of
// bytes, 0 at the end of the stream. Control returns the attachments of these bytes. Receive does
// not wait if the socket is in non-blocking mode. The error is a unix.Errno, such as EAGAIN, never
// EINTR. The Receiver refers to p until the next call, but does not access it after Receive has
// returned.
func (r *Receiver) Receive(fd uintptr, p []byte) (int, error) {
	r.piece.Base = &p[0]
	r.piece.SetLen(len(p))
	for {
		r.message = unix.Msghdr{Iov: &r.piece, Control: &r.control[0]}
		r.message.SetIovlen(1)
		r.message.SetControllen(len(r.control))
		n, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&r.message)), unix.MSG_CMSG_CLOEXEC)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// Control returns the control bytes and the flags of the message that the last call of Receive has
// read, as arguments for [Received]. After an error of Receive they have no meaning. The bytes are
// memory of r, which the next call of Receive overwrites.
func (r *Receiver) Control() (control []byte, flags int) {
	return r.control[:r.message.Controllen], int(r.message.Flags)
}
