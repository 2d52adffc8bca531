package mpt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var (
	// ErrLate matches the error of a channel whose lanes were not open in time:
	// the peer is stuck, or something between the two ends swallows
	// connections to other ports than the pipe's. It matches
	// [channel.ErrUnopened], as the errors of all lanes that are not to be had do.
	ErrLate = fmt.Errorf("%w: lanes were not open in time", channel.ErrUnopened)

	// ErrPlain matches the error of a channel with lanes that do not encrypt,
	// in a pipe that does. Give the channel a transport with TLS.
	ErrPlain = errors.New("lane without TLS in a pipe with TLS")
)

// What the end of the native dialect knows that the other has found out.
var (
	errNotListening = fmt.Errorf("%w: the peer could not listen for lanes", channel.ErrUnopened)
	errNotDialled   = fmt.Errorf("%w: the peer could not dial the lanes", channel.ErrUnopened)
)

// errBusy is about a caller who counts ids wrongly.
var errBusy = errors.New("a transfer with this id is under way")

// unopened says that a lane was not to be had, because of err or because ctx has ended.
func unopened(ctx context.Context, err error) error {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		<-ctx.Done() // transports may notice the deadline before ctx itself does
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) { // which is how a channel ends in good order
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", channel.ErrUnopened, err)
}

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
