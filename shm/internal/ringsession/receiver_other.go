//go:build !linux

package ringsession

import (
	"net"

	"golang.org/x/sys/unix"
)

// receiver reads doorbells, and the files attached to them, from a Unix socket. One goroutine at a
// time uses it.
type receiver struct {
	sock *net.UnixConn
	oob  []byte // large enough for one file
}

func newReceiver(sock *net.UnixConn) (*receiver, error) {
	return &receiver{sock, make([]byte, unix.CmsgSpace(4))}, nil
}

// receive blocks until bytes arrive and reads them into p, which must not be empty. n is their
// number, 0 at the end of the socket. oob holds the control messages that came with the bytes; it
// is memory of r that the next call overwrites. flags are those of recvmsg. The error is that of
// the socket.
func (r *receiver) receive(p []byte) (n int, oob []byte, flags int, err error) {
	n, oobn, flags, _, err := r.sock.ReadMsgUnix(p, r.oob)
	return n, r.oob[:oobn], flags, err
}
