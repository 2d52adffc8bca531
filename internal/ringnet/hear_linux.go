package ringnet

import (
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ear reads bells and what comes along with them. Unlike net.UnixConn's
// ReadMsgUnix it does not make an address of the peer for each.
type ear struct {
	raw     syscall.RawConn
	receive func(fd uintptr) bool // a method of it
	message unix.Msghdr
	piece   unix.Iovec
	oob     []byte // room for one file

	n   int
	err error
}

func newEar(sock *net.UnixConn) (*ear, error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return nil, err
	}
	e := &ear{raw: raw, oob: make([]byte, unix.CmsgSpace(4))}
	e.receive = e.attempt
	return e, nil
}

// hear waits for bytes and puts them into p. What came along is oob; flags tell
// whether there was more.
func (e *ear) hear(p []byte) (n int, oob []byte, flags int, err error) {
	e.piece.Base = &p[0]
	e.piece.SetLen(len(p))
	e.message = unix.Msghdr{Iov: &e.piece, Control: &e.oob[0]}
	e.message.SetIovlen(1)
	e.message.SetControllen(len(e.oob))
	if err := e.raw.Read(e.receive); err != nil {
		return 0, nil, 0, err
	}
	if e.err != nil {
		return 0, nil, 0, os.NewSyscallError("recvmsg", e.err)
	}
	return e.n, e.oob[:e.message.Controllen], int(e.message.Flags), nil
}

func (e *ear) attempt(fd uintptr) bool {
	for {
		n, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&e.message)), unix.MSG_CMSG_CLOEXEC)
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		case 0:
			e.n, e.err = int(n), nil
		default:
			e.n, e.err = 0, errno
		}
		return true
	}
}
