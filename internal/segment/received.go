package segment

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Received returns the files that came along with one message of a Unix socket, whose
// control bytes and flags the arguments are. control must have had room for want
// files. The caller owns the files.
//
// If other than want files came, all are closed. The error is a *Error with EMFILE
// if this process had no room for them, and matches ErrFile if the peer is to blame.
func Received(control []byte, flags, want int) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, fmt.Errorf("%w: a bad control message: %w", ErrFile, err)
	}
	var fds []int
	for i := range messages {
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil { // else it is of another kind
			fds = append(fds, got...)
		}
	}
	if err := delivered(len(fds), want, flags&unix.MSG_CTRUNC != 0); err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, err
	}
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), "shared memory")
	}
	return files, nil
}

// delivered judges how many files came. The system keeps back those that no room was
// left for in the message, or that would go beyond the limit of open files.
func delivered(came, want int, more bool) error {
	switch {
	case came < want && more:
		return &Error{Call: "recvmsg", Err: syscall.EMFILE}
	case more:
		return fmt.Errorf("%w: more files came than the %d that were due", ErrFile, want)
	case came != want:
		return fmt.Errorf("%w: %d files came where %d were due", ErrFile, came, want)
	}
	return nil
}
