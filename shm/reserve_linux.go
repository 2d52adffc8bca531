package shm

import (
	"errors"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// reserve is a descriptor that a listener gives up when the process has no other one
// left, to accept a connection and end it. A peer that moves a pipe to shared memory then
// knows at once that it cannot, where it would else wait until its time is up. It is an
// eventfd, which ends a poll when the listener closes.
type reserve struct {
	mu   sync.Mutex
	fd   int
	held bool
}

// hold opens the descriptor and reports whether there was one left for it.
func (r *reserve) hold() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.held {
		var err error
		r.fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		r.held = err == nil
	}
	return r.held
}

// release closes the descriptor if there is one.
func (r *reserve) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held {
		_ = unix.Close(r.fd)
		r.held = false
	}
}

// wake ends a poll of the descriptor.
func (r *reserve) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held {
		_, _ = unix.Write(r.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// accept blocks until a peer connects. Where there is no descriptor for the connection
// it is ended, and ended says why.
func (l *listener) accept() (socket *net.UnixConn, ended *refused, err error) {
	socket, err = l.socket.AcceptUnix()
	if !isShortage(err) || !l.reserve.hold() {
		return socket, nil, err
	}
	l.awaitPeer() // the system reports the shortage where there is no peer, too
	socket, err = l.socket.AcceptUnix()
	if !isShortage(err) {
		return socket, nil, err
	}
	shortage := err
	l.reserve.release()
	socket, err = l.socket.AcceptUnix()
	if err != nil || l.reserve.hold() {
		return socket, nil, err
	}
	id, _ := identify(socket)
	_ = socket.Close()
	l.reserve.hold()
	peer := processName(id.PID)
	return nil, &refused{local: l.name, remote: peer, err: &HandshakeError{Peer: peer, Err: shortage}}, nil
}

func isShortage(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }

// awaitPeer blocks until a peer connects or the listener closes. The reserve is held.
func (l *listener) awaitPeer() {
	select {
	case <-l.done: // wake may have been called before there was a reserve
		return
	default:
	}
	raw, err := l.socket.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(l.reserve.fd), Events: unix.POLLIN}}
		for err := error(unix.EINTR); err == unix.EINTR; {
			_, err = unix.Poll(polled, -1)
		}
	})
}
