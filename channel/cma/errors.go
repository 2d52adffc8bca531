package cma

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// ErrScattered is the error of a Send whose memory lies in too many pieces and is
// too large to be gathered, see [MaxGather]. In the compatible dialect it closes
// the channel.
var ErrScattered = errors.New("too large a tensor in too many pieces: give it as fewer pieces")

// ReadError says that the memory of another process could not be read. Err is
// the system's reason: EPERM where it is forbidden, ENOSYS where a filter does not know
// the call, EFAULT where there is no memory at the address, here or there, ESRCH where
// there is no such process. Errors of transfers match [channel.ErrForbidden] or
// [channel.ErrCopy] too, but for the last one.
type ReadError struct {
	PID int
	Err error
}

func (e *ReadError) Error() string {
	return "read the memory of process " + strconv.Itoa(e.PID) + ": " + e.Err.Error()
}

// Unwrap returns the system's reason.
func (e *ReadError) Unwrap() error { return e.Err }

// explain puts a name to an error. What the transport finds wrong with a frame is
// the peer's doing; a process that cannot be read may well be alive, if there is one.
func explain(peer string, err error) error {
	var read *ReadError
	switch {
	case errors.Is(err, transport.ErrFrame):
		err = protocolError("%w", err)
	case errors.As(err, &read) && !gone(err):
		err = fmt.Errorf("%w: %w", read.kind(), err)
	}
	return &channel.Error{Channel: Name, Peer: peer, Err: err}
}

// kind tells a call that the system does not allow from memory that it cannot copy.
func (e *ReadError) kind() error {
	if errors.Is(e, fs.ErrPermission) || errors.Is(e, errors.ErrUnsupported) {
		return channel.ErrForbidden
	}
	return channel.ErrCopy
}

// protocolError says what the peer did that it must not.
func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{channel.ErrProtocol}, args...)...)
}
