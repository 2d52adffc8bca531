package segment

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Received returns the want files that were attached to one message of a Unix socket. control holds
// the control bytes and flags the flags of that message; control must have had space for want
// files. The caller owns the files.
//
// If the message had another number of files, those received are closed. The error is an *Error
// with EMFILE if this process could not receive them, and matches ErrFile if the peer is at fault.
// With an error the result is nil.
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
	if err := checkCount(len(fds), want, flags&unix.MSG_CTRUNC != 0); err != nil {
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

// checkCount returns nil if got, the number of files received, equals want and more is false, and
// otherwise the error for Received to return. more means that the kernel withheld files, because
// the message had no space for them or they would exceed the limit of open files.
func checkCount(got, want int, more bool) error {
	switch {
	case got < want && more:
		return &Error{Call: "recvmsg", Err: syscall.EMFILE}
	case more:
		return fmt.Errorf("%w: more files came than the %d that were due", ErrFile, want)
	case got != want:
		return fmt.Errorf("%w: %d files came where %d were due", ErrFile, got, want)
	}
	return nil
}
