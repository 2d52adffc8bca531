package mpt

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var (
	// ErrLate matches the error of a channel whose lanes were not open in time:
	// the peer is stuck, or something between the two ends swallows
	// connections to other ports than the pipe's.
	ErrLate = errors.New("lanes were not open in time")

	// ErrPlain matches the error of a channel with lanes that do not encrypt,
	// in a pipe that does. Give the channel a transport with TLS.
	ErrPlain = errors.New("lane without TLS in a pipe with TLS")
)

// errBusy is about a caller who counts ids wrongly.
var errBusy = errors.New("a transfer with this id is under way")

// protocolError is an error about a peer that breaks the protocol.
func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{channel.ErrProtocol}, args...)...)
}

// explain puts a name to an error. What is wrong with a frame or a message is the
// peer's doing.
func explain(peer string, err error) error {
	if named, ok := errors.AsType[*channel.Error](err); ok && named.Channel == Name {
		return err
	}
	_, bad := errors.AsType[*wire.Error](err)
	if bad || errors.Is(err, transport.ErrFrame) {
		err = fmt.Errorf("%w: %w", channel.ErrProtocol, err)
	}
	return &channel.Error{Channel: Name, Peer: peer, Err: err}
}
