package shm

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// identify asks the kernel who made the other end of a socket.
func identify(socket *net.UnixConn) (id transport.Identity, err error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return id, err
	}
	var credentials *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		credentials, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = os.NewSyscallError("getsockopt SO_PEERCRED", failed)
	}
	if err != nil {
		return id, err
	}
	return transport.Identity{PID: int(credentials.Pid), UID: int(credentials.Uid), GID: int(credentials.Gid)}, nil
}

// admits turns away other users.
func (t *Transport) admits(id transport.Identity) error {
	if own := os.Geteuid(); !t.otherUsers && id.UID != own {
		return fmt.Errorf("%w: uid %d, this one is %d", ErrOtherUser, id.UID, own)
	}
	return nil
}

// processName is the address of an end that dialled, whose socket has no name.
func processName(pid int) string { return fmt.Sprintf("pid %d", pid) }
