package pipe

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// classify turns what a connection or channel said into one of this package's
// errors, keeping it as the cause. Other errors pass as they are.
func classify(err error) error {
	switch {
	case err == nil, isKnown(err):
		return err
	case errors.Is(err, native.ErrChecksum) && !errors.Is(err, ErrChecksum):
		return fmt.Errorf("%w: %w", ErrChecksum, err)
	case errors.Is(err, io.EOF):
		return ErrPeerClosed
	case errors.Is(err, transport.ErrFrame), errors.Is(err, channel.ErrProtocol):
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	case errors.Is(err, channel.ErrAborted), isConnectionLoss(err):
		return fmt.Errorf("%w: %w", ErrPeerLost, err)
	default:
		return err
	}
}

// isKnown reports whether an error is one of this package's, or of package channel's
// that this package has too.
func isKnown(err error) bool {
	for _, known := range []error{ErrClosed, ErrProtocol, ErrPeerLost, ErrForbidden, ErrCopy, ErrUnopened} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// isConnectionLoss is about what the system says of a connection. What it refuses to
// this process, as memory to share, is nobody's loss.
func isConnectionLoss(err error) bool {
	var refused *segment.Error
	if errors.As(err, &refused) {
		return false
	}
	var errno syscall.Errno
	var network net.Error
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.As(err, &errno) || errors.As(err, &network)
}

// midMessage turns an end of a connection that is orderly for the transport,
// between two frames, into what it is within a message.
func midMessage(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// isGone reports whether err says that the peer is not there any more.
func isGone(err error) bool { return errors.Is(err, ErrPeerClosed) || errors.Is(err, ErrPeerLost) }
