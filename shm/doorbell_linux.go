package shm

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/socket"
)

// Events that two ends of this package send through the socket, one byte each.
const (
	eventChanged = 1 // one of the rings has changed
	eventSession = 2 // all further bytes belong to a session
	eventSegment = 3 // the file of a session's segment is attached
)

// send sends the byte what, an event, through the socket, with a copy of file's descriptor attached
// if file is not nil; the caller keeps file. While the peer lets doorbells fill the socket it
// blocks, for at most c.sendTimeout, and then returns an *Error that matches ErrProtocol. Other
// errors are those of the socket.
func (c *conn) send(what byte, file *os.File) error {
	err := socket.Send(c.socket, []byte{what}, file, c.sendTimeout)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return c.failure("write", protocolError("it does not read its doorbells"))
	}
	return err
}

// writeDoorbell calls send, which must send eventChanged through the socket fd without waiting for
// space in it. A full socket is no error: the peer has doorbells to read and will check the rings.
// If the system has no memory for the doorbell, even after retries, writeDoorbell shuts the socket
// down, which ends the connection: the peer could wait for that doorbell indefinitely. Other errors
// of send are ignored.
func writeDoorbell(fd uintptr, send func(fd uintptr) error) {
	failpoint.Here()
	if socket.Retry(func() error { return send(fd) }) == unix.ENOBUFS {
		_ = unix.Shutdown(int(fd), unix.SHUT_RDWR) // fails if the peer is gone
	}
}

func sendDoorbell(fd uintptr) error {
	return unix.Send(int(fd), doorbell, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

var doorbell = []byte{eventChanged}

// receiveEvents is the goroutine of a connection that reads events from the socket. It returns
// after Close, when the peer is gone, or when both ends have switched to a session, whose goroutine
// reads the socket from then on. If this end has a session by then, receiveEvents first unmaps both
// inboxes. It closes c.receiveDone when it returns.
func (c *conn) receiveEvents() {
	defer close(c.receiveDone)
	for !c.switched && !c.closed.Load() {
		err := c.raw.Read(c.receiveEvent)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		_ = c.socket.SetReadDeadline(time.Time{}) // this end has switched to a session, the peer has not
	}
	if c.switched {
		// Until this end has switched too, or the peer has hung up. The bytes belong to the session.
		_ = c.raw.Read(func(fd uintptr) bool {
			return c.session.Load() != nil || peerHungUp(int(fd)) && c.handleEOF(int(fd), nil)
		})
		_ = c.socket.SetReadDeadline(time.Time{})
	}
	if c.session.Load() != nil {
		c.ownInbox.close()
		c.peerInbox.close()
	}
}

// receiveEvent is the callback by which receiveEvents reads the socket fd. It handles the events
// that have arrived: it wakes the connection's calls, keeps a session's file, or makes reads fail.
// It returns false if it is to be called when more events arrive, and true after Close, once the
// peer is gone, or after eventSession. It reads one byte at a time, because bytes after
// eventSession belong to the session. It checks for Close after each, since the peer may send
// without pause.
func (c *conn) receiveEvent(fd uintptr) bool {
	event := c.event[:]
	for !c.closed.Load() {
		n, err := c.receiver.Receive(fd, event)
		control, flags := c.receiver.Control()
		switch {
		case err == unix.EAGAIN:
			return false
		case n == 0 || err != nil:
			failpoint.Here()
			return c.handleEOF(int(fd), err)
		case event[0] == eventSegment, len(control) > 0, flags&unix.MSG_CTRUNC != 0:
			c.handleFile(event[0], control, flags)
		case !c.doorbells:
			c.in.fail(protocolError("bytes on the socket after the greeting"))
		case event[0] == eventSession:
			c.switched = true
			return true
		default:
			failpoint.Here()
			c.in.wakeup.wake()
			c.out.wakeup.wake()
		}
	}
	return true
}

// handleEOF handles the end of the socket fd: the error err of a read or, if err is nil, the end of
// its reading half. It records that the peer writes no more, and wakes the reader. If the peer is
// gone, it also sets c.peerGone, wakes the writer, and returns true. If a C++ peer has only
// finished writing, it returns false; receiveEvents goes on until that peer has closed.
func (c *conn) handleEOF(fd int, err error) bool {
	c.peerFinished.Store(true)
	c.in.wakeup.wake()
	if err == nil && !c.doorbells && !peerHungUp(fd) {
		return false
	}
	c.peerGone.Store(true)
	c.in.wakeup.wake() // the reader may be about to send a trigger
	c.out.wakeup.wake()
	return true
}

// peerHungUp reports, without blocking, whether the peer of the socket fd has closed it, or the
// socket or the system call has failed. A peer that has only closed its writing half has not hung
// up.
func peerHungUp(fd int) bool {
	polled := []unix.PollFd{{Fd: int32(fd)}}
	for {
		_, err := unix.Poll(polled, 0)
		if err != unix.EINTR {
			return err != nil || polled[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
		}
	}
}
