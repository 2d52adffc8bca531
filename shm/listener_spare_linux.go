package shm

import (
	"cmp"
	"errors"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// spareDescriptor is a descriptor that a listener keeps in reserve. When the process has no other
// one, the listener uses its number to accept a connection and close it. A peer that wants to move
// a pipe to shared memory then learns of the failure at once and goes on without shared memory.
// Otherwise it would wait until the handshake times out. The descriptor is an eventfd, which ends a
// poll when the listener closes.
type spareDescriptor struct {
	mu   sync.Mutex
	fd   int
	held bool
}

// hold opens the spare descriptor if it is not open, and returns true if it is open now. It returns
// false if the system refuses a descriptor.
func (r *spareDescriptor) hold() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.held {
		r.open()
	}
	return r.held
}

// open opens the descriptor and sets held to whether that succeeded. The descriptor must not be
// open. The caller holds mu.
func (r *spareDescriptor) open() {
	var err error
	r.fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	r.held = err == nil
}

// release closes the descriptor if it is open.
func (r *spareDescriptor) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held {
		_ = unix.Close(r.fd)
		r.held = false
	}
}

// wake makes the descriptor readable, which ends a call of awaitPeer that waits for it. It does
// nothing if the descriptor is not open.
func (r *spareDescriptor) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held {
		_, _ = unix.Write(r.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// swap closes the spare descriptor if it is open, calls f, and opens the spare descriptor again if
// it can. f may open another descriptor in its place and must close it. f is called at once, so
// that other goroutines rarely take the number first. f must not use r: mu is held.
func (r *spareDescriptor) swap(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held {
		_ = unix.Close(r.fd)
	}
	f()
	r.open()
}

// accept blocks until a client connects and returns its socket, which the caller owns. If the
// process has no descriptor left for the connection, accept closes the connection with the help of
// the spare descriptor and returns ended, a failed connection that the listener's Accept returns in
// its place. err is any other error: for example after Close, or of a lack of descriptors when
// there is no spare one. Only one of the three results is not nil.
func (l *listener) accept() (socket *net.UnixConn, ended *failedConn, err error) {
	socket, err = l.socket.AcceptUnix()
	if !outOfDescriptors(err) || !l.spare.hold() {
		return socket, nil, err
	}
	l.awaitPeer() // the system reports the shortage even if no peer has connected
	socket, err = l.socket.AcceptUnix()
	if !outOfDescriptors(err) {
		return socket, nil, err
	}
	pid, endErr := l.rejectOne()
	if endErr != nil {
		return nil, nil, endErr
	}
	peer := processName(pid)
	return nil, &failedConn{local: l.name, remote: peer, err: &HandshakeError{Peer: peer, Err: err}}, nil
}

func outOfDescriptors(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}

// rejectOne accepts a connection with the spare descriptor's number and closes it at once. It does
// not block. It returns the process id of the client, or 0 if that is not known. The error is that
// of accept(2), or means that the listener is closed.
func (l *listener) rejectOne() (pid int, err error) {
	raw, err := l.socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := raw.Control(func(listening uintptr) {
		l.spare.swap(func() {
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

// awaitPeer blocks until a client connects or the listener is closed; it may return early if a
// system call fails. The caller has opened the spare descriptor (hold).
func (l *listener) awaitPeer() {
	select {
	case <-l.done: // wake may have been called before the spare descriptor was open
		return
	default:
	}
	raw, err := l.socket.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		polled := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(l.spare.fd), Events: unix.POLLIN}}
		for err := error(unix.EINTR); err == unix.EINTR; {
			_, err = unix.Poll(polled, -1)
		}
	})
}
