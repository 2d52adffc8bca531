package shm

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/step"
)

// What ends of ours say on the socket, in one byte.
const (
	somethingNew   = 1 // in one of the rings
	changeOver     = 2 // what follows is a session's
	sessionSegment = 3 // the file of a session to come is passed with it
)

// sayChangeOver may not be lost: the peer waits for that byte. Where the peer is gone
// attend hears of it.
func (c *conn) sayChangeOver() error {
	step.Here()
	err := c.send(changeOver, nil)
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return nil
	}
	return err
}

// send sends a byte on the socket, and the file with it if that is not nil. It blocks
// while a peer lets doorbells come together until no more fit, for c.hearing at most.
func (c *conn) send(what byte, file *os.File) error {
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	_ = c.socket.SetWriteDeadline(time.Now().Add(c.hearing))
	_, _, err := c.socket.WriteMsgUnix([]byte{what}, rights, nil)
	_ = c.socket.SetWriteDeadline(time.Time{})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return c.failure("write", protocolError("it does not listen to its doorbell"))
	}
	return err
}

// pressDoorbell says that there is something new. Where the socket is full the peer
// has been rung for already.
func pressDoorbell(fd uintptr) {
	step.Here()
	press(fd, sendDoorbell)
}

// shortages is how often a doorbell is tried again for which the system has no memory.
const shortages = 100

// press ends the connection where the system never has memory: the peer might wait
// for that doorbell for ever.
func press(fd uintptr, send func(fd uintptr) error) {
	for range shortages {
		if send(fd) != unix.ENOBUFS {
			return
		}
		pause()
	}
	_ = unix.Shutdown(int(fd), unix.SHUT_RDWR) // it fails where the peer is gone
}

func pause() {
	t := time.NewTimer(time.Millisecond)
	defer t.Stop()
	<-t.C
}

func sendDoorbell(fd uintptr) error {
	return unix.Send(int(fd), doorbell, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

var doorbell = []byte{somethingNew}

// attend hears what comes over the socket, until there is no more to come for the
// connection.
func (c *conn) attend() {
	defer close(c.left)
	for !c.parted && !c.closed.Load() {
		err := c.raw.Read(c.hear)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		_ = c.socket.SetReadDeadline(time.Time{}) // this end changed over, the peer has not
	}
	if c.parted {
		_ = c.raw.Read(c.awaitSession)
		_ = c.socket.SetReadDeadline(time.Time{})
	}
	if c.session.Load() != nil {
		c.mine.close()
		c.theirs.close()
	}
}

// hear takes what is there, and reports whether nothing will follow that is of use. It
// takes a byte at a time: what follows a change-over is not its own. A peer that is
// faster than that must not keep it here, for Close waits for it.
func (c *conn) hear(fd uintptr) bool {
	heard := c.heard[:]
	for !c.closed.Load() {
		n, err := c.receiver.Receive(fd, heard)
		control, flags := c.receiver.Control()
		switch {
		case err == unix.EAGAIN:
			return false
		case n == 0 || err != nil:
			step.Here()
			return c.hearEnd(int(fd), err)
		case heard[0] == sessionSegment, len(control) > 0, flags&unix.MSG_CTRUNC != 0:
			c.receiveFile(heard[0], control, flags)
		case !c.rings:
			c.in.blame(protocolError("bytes on the socket behind the greeting"))
		case heard[0] == changeOver:
			c.parted = true
			return true
		default:
			step.Here()
			c.in.bell.ring()
			c.out.bell.ring()
		}
	}
	return true
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
	c.in.bell.ring() // the reader may be about to leave a token
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
