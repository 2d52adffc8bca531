//go:build !linux

package ringnet

import (
	"net"

	"golang.org/x/sys/unix"
)

// ear reads bells and what comes along with them.
type ear struct {
	sock *net.UnixConn
	oob  []byte // room for one file
}

func newEar(sock *net.UnixConn) (*ear, error) {
	return &ear{sock, make([]byte, unix.CmsgSpace(4))}, nil
}

// hear waits for bytes and puts them into p. What came along is oob; flags tell
// whether there was more.
func (e *ear) hear(p []byte) (n int, oob []byte, flags int, err error) {
	n, oobn, flags, _, err := e.sock.ReadMsgUnix(p, e.oob)
	return n, e.oob[:oobn], flags, err
}
