// Package socket sends through Unix sockets whose buffers may be full.
package socket

import (
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// MaxRetries is how often Retry calls a function again.
const MaxRetries = 100

// Retry calls send, which sends through a Unix socket, and calls it again while the system has no
// memory for the message (ENOBUFS): after a millisecond each time, up to MaxRetries times. It
// returns the error of the last call.
func Retry(send func() error) error {
	for range MaxRetries {
		if err := send(); !errors.Is(err, unix.ENOBUFS) {
			return err
		}
		<-time.NewTimer(time.Millisecond).C
	}
	return send()
}

// Send sends p, with a copy of file's descriptor attached if file is not nil; the caller keeps
// file. While the buffer of the socket is full it blocks, for at most timeout; then the error
// matches os.ErrDeadlineExceeded. Other errors are those of the socket. Send sets the socket's
// write deadline and removes it before it returns, so no other goroutine may be writing to the
// socket with a deadline.
func Send(socket *net.UnixConn, p []byte, file *os.File, timeout time.Duration) error {
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	_ = socket.SetWriteDeadline(time.Now().Add(timeout))
	err := Retry(func() error {
		_, _, err := socket.WriteMsgUnix(p, rights, nil)
		return err
	})
	_ = socket.SetWriteDeadline(time.Time{})
	return err
}
