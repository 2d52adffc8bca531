package ringnet

import (
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

// ear reads bells and the files that are passed with them.
type ear struct {
	raw      syscall.RawConn
	receive  func(fd uintptr) bool // a method of it
	receiver *segment.Receiver

	p   []byte
	n   int
	err error
}

func newEar(sock *net.UnixConn) (*ear, error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return nil, err
	}
	e := &ear{raw: raw, receiver: segment.NewReceiver()}
	e.receive = e.attempt
	return e, nil
}

// hear waits for bytes and puts them into p. What came along is oob; flags tell
// whether there was more.
func (e *ear) hear(p []byte) (n int, oob []byte, flags int, err error) {
	e.p = p
	if err := e.raw.Read(e.receive); err != nil {
		return 0, nil, 0, err
	}
	if e.err != nil {
		return 0, nil, 0, os.NewSyscallError("recvmsg", e.err)
	}
	oob, flags = e.receiver.Control()
	return e.n, oob, flags, nil
}

func (e *ear) attempt(fd uintptr) bool {
	e.n, e.err = e.receiver.Receive(fd, e.p)
	return e.err != unix.EAGAIN
}
