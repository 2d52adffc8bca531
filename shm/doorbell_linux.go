package shm

import (
	"golang.org/x/sys/unix"
)

var doorbell = []byte{1}

// pressDoorbell sends one byte. Where the socket is full the peer has been rung
// for already.
func pressDoorbell(fd uintptr) {
	_ = unix.Send(int(fd), doorbell, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// attend hears what comes over the socket, until there is no more to come.
func (c *conn) attend() {
	_ = c.raw.Read(c.hear) // it fails when this end closes
}

// hear takes what is there, and reports whether nothing will follow.
func (c *conn) hear(fd uintptr) bool {
	var rung [64]byte
	for {
		n, err := unix.Read(int(fd), rung[:])
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return false
		case n > 0 && c.rings:
			c.in.bell.ring()
			c.out.bell.ring()
		case n > 0:
			c.in.blame(protocolError("bytes on the socket behind the greeting"))
		default:
			return c.hearEnd(int(fd), err)
		}
	}
}

// hearEnd tells an end of the peer's writing, which is one of the socket where
// there are no doorbells, from one of the peer. After the former it goes on to
// listen for the latter.
func (c *conn) hearEnd(fd int, err error) bool {
	c.ended.Store(true)
	c.in.bell.ring()
	if err == nil && !c.rings && !hungUp(fd) {
		return false
	}
	c.gone.Store(true)
	c.out.bell.ring()
	return true
}

func hungUp(fd int) bool {
	polled := []unix.PollFd{{Fd: int32(fd)}}
	for {
		_, err := unix.Poll(polled, 0)
		if err != unix.EINTR {
			return err != nil || polled[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
		}
	}
}
