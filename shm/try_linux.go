package shm

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// tryMachine takes what the first connection takes, all at once, so that a limit
// that it would meet shows here, and gives it back: one end shares its memory with
// another one in this process. Nobody is let in by the listener, which others can
// dial too.
func tryMachine() error {
	l, err := net.ListenUnix("unix", socketAddr(""))
	if err != nil {
		return err
	}
	defer l.Close()
	there, here, err := socketPair()
	if err != nil {
		return err
	}
	t := New()
	giving, taking := newHandshake(t, there), newHandshake(t, here)
	defer giving.undo()
	defer taking.undo()
	if err := giving.share(); err != nil {
		return err
	}
	return taking.take()
}

// socketPair returns the two ends of a socket that has no name.
func socketPair() (one, other *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	if one, err = connOf(fds[0]); err != nil {
		_ = unix.Close(fds[1])
		return nil, nil, err
	}
	if other, err = connOf(fds[1]); err != nil {
		one.Close()
		return nil, nil, err
	}
	return one, other, nil
}

// connOf takes over a socket.
func connOf(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}
