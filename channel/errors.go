package channel

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// ErrClosed is the error of transfers on a channel that was closed without a cause. It is the same
// value as net.ErrClosed.
var ErrClosed = transport.ErrClosed

// ErrProtocol matches errors about a peer that violates the channel's protocol. The channel cannot be
// used any more. The peer has another version, or is malicious.
var ErrProtocol = errors.New("peer broke the protocol")

// ErrAborted matches errors of transfers that the peer aborted while the channel as a whole continues.
var ErrAborted = errors.New("peer gave up the transfer")

// ErrForbidden matches errors about an operation that the system has stopped permitting although it
// worked before. The peer may be alive; in a new pipe the channel will be rejected.
var ErrForbidden = errors.New("the system does not permit it any more")

// ErrCopy matches errors of transfers whose memory the system could not copy, at either end: it is not
// mapped any more, is not readable or writable, or the system has too little memory. The peer may be
// alive. In the native dialect other transfers continue.
var ErrCopy = errors.New("the memory cannot be copied")

// ErrUnopened matches errors about resources that a channel opens on its own, such as further
// connections: they were refused, timed out, were not as secure as required, or this process has no
// descriptors left. The cause follows in the message. The peer may be alive.
var ErrUnopened = errors.New("what the channel needs could not be opened")

// Error names the channel and the peer of a failure. Err is the cause: an error of the connection such
// as io.EOF, of a device, or one of this package.
type Error struct {
	Channel string // name of the implementation, as in "basic"
	Peer    string // Link.Peer
	Err     error
}

func (e *Error) Error() string {
	return "channel " + e.Channel + " to " + e.Peer + ": " + e.Err.Error()
}

// Unwrap returns Err, the cause.
func (e *Error) Unwrap() error { return e.Err }

// LengthError reports that the peer sends a tensor of another size than the descriptor of the message
// announced. It matches [ErrProtocol].
type LengthError struct {
	Want int64 // size of the memory given to Recv
	Got  int64 // size that the peer claims
}

func (e *LengthError) Error() string {
	return fmt.Sprintf("peer sends %d bytes where %d were announced", e.Got, e.Want)
}

// Is reports whether target is ErrProtocol, so that the error matches it with errors.Is.
func (e *LengthError) Is(target error) bool { return target == ErrProtocol }

// DeviceErrors is the error of a [Prober] whose channel works, except with these devices of this end.
type DeviceErrors map[device.Device]error

func (e DeviceErrors) Error() string {
	var texts []string
	for d, err := range e {
		texts = append(texts, d.String()+": "+err.Error())
	}
	slices.Sort(texts)
	return strings.Join(texts, "; ")
}

// LinkError reports that a [Link] has the wrong number of connections: Got, where the channel needs
// Want.
type LinkError struct {
	Want, Got int
}

func (e *LinkError) Error() string {
	return fmt.Sprintf("link has %d connections, want %d", e.Got, e.Want)
}

// CheckLink returns nil if l has want connections, the number that the channel needs. Otherwise it
// closes l with [CloseLink] and returns an error that matches a [*LinkError], joined with the error
// of closing l, if any.
func CheckLink(l Link, want int) error {
	if len(l.Conns) == want {
		return nil
	}
	return errtext.Join(&LinkError{Want: want, Got: len(l.Conns)}, CloseLink(l))
}

// CloseLink closes l.Host, if it is not nil, and all connections of l, even if closing one fails.
// It returns their errors joined, or nil.
func CloseLink(l Link) error {
	var errs []error
	if l.Host != nil {
		errs = append(errs, l.Host.Close(nil))
	}
	for _, c := range l.Conns {
		errs = append(errs, c.Close())
	}
	return errtext.Join(errs...)
}
