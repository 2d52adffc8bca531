package channel

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// ErrClosed is the error of transfers on a channel that was closed without a
// cause. It is the same value as net.ErrClosed.
var ErrClosed = transport.ErrClosed

// ErrProtocol matches errors about a peer that does not keep to the channel's
// protocol. The channel is of no use any more; look for a peer of another
// version, or one that means harm.
var ErrProtocol = errors.New("peer broke the protocol")

// ErrAborted matches errors of transfers that the peer gave up while the
// channel as a whole goes on.
var ErrAborted = errors.New("peer gave up the transfer")

// ErrForbidden matches errors about something that the system does not let the
// channel do, though it worked before. The peer may be alive and well; open
// another pipe, in which the channel will be refused.
var ErrForbidden = errors.New("the system does not permit it any more")

// ErrCopy matches errors of transfers whose memory the system could not copy, at either
// end: it is not there any more, may not be read or written to, or there is too little
// besides. The peer may be alive and well. In the native dialect other transfers go on.
var ErrCopy = errors.New("the memory cannot be copied")

// ErrUnopened matches errors about something that a channel opens by itself, such as
// further connections, and could not have, or not use: it was refused, or took too long,
// or is not as safe as it has to be, or this process has no descriptor left. The cause
// follows. The peer may be alive and well.
var ErrUnopened = errors.New("what the channel needs could not be opened")

// Error says which channel to whom failed. Err is the cause: an error of the
// connection such as io.EOF, of a device, or one of this package.
type Error struct {
	Channel string // name of the implementation, as in "basic"
	Peer    string // Link.Peer
	Err     error
}

func (e *Error) Error() string {
	return "channel " + e.Channel + " to " + e.Peer + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// LengthError says that the peer sends a tensor of another size than the
// message's descriptor announced. It matches [ErrProtocol].
type LengthError struct {
	Want int64 // size of the memory given to Recv
	Got  int64 // size that the peer claims
}

func (e *LengthError) Error() string {
	return fmt.Sprintf("peer sends %d bytes where %d were announced", e.Got, e.Want)
}

// Is makes the error match ErrProtocol.
func (e *LengthError) Is(target error) bool { return target == ErrProtocol }

// LinkError says that a [Link] has the wrong number of connections.
type LinkError struct {
	Want, Got int
}

func (e *LinkError) Error() string {
	return fmt.Sprintf("link has %d connections, want %d", e.Got, e.Want)
}

// CheckLink returns a [*LinkError] if l does not have the number of connections
// that a channel needs, and then calls [CloseLink].
func CheckLink(l Link, want int) error {
	if len(l.Conns) == want {
		return nil
	}
	return errors.Join(&LinkError{Want: want, Got: len(l.Conns)}, CloseLink(l))
}

// CloseLink closes what a channel gets with l: the connections, and Host.
func CloseLink(l Link) error {
	var errs []error
	if l.Host != nil {
		errs = append(errs, l.Host.Close(nil))
	}
	for _, c := range l.Conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
