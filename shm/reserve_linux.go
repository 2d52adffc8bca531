package shm

import (
	"cmp"
	"errors"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// reserve is a descriptor that a listener closes when the process has no other one left,
// to accept a connection and close it. A peer that moves a pipe to shared memory then
// fails at once and continues without, where it would otherwise wait for the time limit of
// the handshake. The reserve is an eventfd, which ends a poll when the listener closes.
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
		r.open()
	}
	return r.held
}

// open opens the descriptor. The caller holds mu.
func (r *reserve) open() {
	var err error
	r.fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	r.held = err == nil
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

// swap closes the descriptor, calls f, which may open one, and opens the reserve again. f
// is called at once, so that other goroutines rarely take the descriptor before.
func (r *reserve) swap(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held {
		_ = unix.Close(r.fd)
	}
	f()
	r.open()
}

// accept blocks until a peer connects. Without a descriptor for the connection it closes
// that, and returns ended with the reason.
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
	pid, endErr := l.endOne()
	if endErr != nil {
		return nil, nil, endErr
	}
	peer := processName(pid)
	return nil, &refused{local: l.name, remote: peer, err: &HandshakeError{Peer: peer, Err: err}}, nil
}

func isShortage(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }

// endOne accepts a connection in place of the reserve and closes it. It returns the
// process of the peer, 0 where that is not known.
func (l *listener) endOne() (pid int, err error) {
	raw, err := l.socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := raw.Control(func(listening uintptr) {
		l.reserve.swap(func() {
			var fd int
			if fd, _, err = unix.Accept4(int(listening), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK); err != nil {
				return
			}
			if credentials, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				pid = int(credentials.Pid)
			}
			_ = unix.Close(fd)
		})
	})
	return pid, cmp.Or(ctlErr, err)
}

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
