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
// the system's reason: EPERM where it is forbidden, EFAULT where there is no
// memory at the address, ESRCH where there is no such process.
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
// the peer's doing; a process that cannot be read any more may well be alive.
func explain(peer string, err error) error {
	var read *ReadError
	switch {
	case errors.Is(err, transport.ErrFrame):
		err = protocolError("%w", err)
	case errors.As(err, &read) && errors.Is(err, fs.ErrPermission):
		err = fmt.Errorf("%w: %w", channel.ErrForbidden, err)
	}
	return &channel.Error{Channel: Name, Peer: peer, Err: err}
}

// protocolError says what the peer did that it must not.
func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{channel.ErrProtocol}, args...)...)
}
