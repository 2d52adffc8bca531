package pipe

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// Errors that calls of this package return, wrapped in an [*Error] that names
// the peer and the connection. Match them with errors.Is.
var (
	// ErrClosed: this process closed the pipe, listener or context. It is the
	// same value as net.ErrClosed.
	ErrClosed = net.ErrClosed

	// ErrPeerClosed: the peer closed the pipe in an orderly way. A C++ peer that is
	// killed while no message of this end is being sent cannot be distinguished
	// from one that closes.
	ErrPeerClosed = errors.New("peer closed the pipe")

	// ErrPeerLost: a connection broke or ended in the middle of a message, because
	// the peer died or aborted or the network failed. The cause is in the text and in
	// the error chain.
	ErrPeerLost = errors.New("lost the peer")

	// ErrProtocol: the peer sent something that the protocol does not allow.
	// The pipe is closed; other pipes are not affected.
	ErrProtocol = errors.New("peer broke the protocol")

	// ErrLimit: a message, a size claimed by the peer or a number of connections
	// exceeds a limit of the Options; or a message has a descriptor that is larger
	// than the peer can read or, in the compatible dialect, a part that the transport
	// or the channel cannot carry, such as a tensor of 4 GiB over shm. A message of
	// this end is rejected before any of it is sent, and the pipe stays open.
	ErrLimit = errors.New("limit exceeded")

	// ErrOptions: the Options given to New are invalid; the text has the details.
	ErrOptions = errors.New("bad options")

	// ErrURL: a URL is not of the form transport://address, or names a
	// transport that the context does not have.
	ErrURL = errors.New("bad url")

	// ErrNoTransport: the two ends share no transport.
	ErrNoTransport = errors.New("no common transport")

	// ErrNoChannel: the two ends share no channel for a pair of devices. The Plan
	// has the reasons why channels were rejected.
	ErrNoChannel = errors.New("no channel for these devices")

	// ErrPolicy: there is no path that the policies of both ends allow. The text has
	// the requirement, the end whose policy it is, and why it is not met.
	ErrPolicy = errors.New("policy not met")

	// ErrHandshake: the pipe could not be opened; the cause is in the error chain.
	ErrHandshake = errors.New("handshake failed")

	// ErrHandshakeTimeout: the handshake did not finish within HandshakeTimeout.
	ErrHandshakeTimeout = errors.New("handshake timed out")

	// ErrCancelled: a call was cancelled after a part of its message was sent or
	// received. In the compatible dialect that closes the pipe.
	ErrCancelled = errors.New("a call was cancelled in the middle of a message")

	// ErrForbidden: the system no longer permits an operation that a channel needs
	// and that was permitted when the pipe was opened; the cause is in the error
	// chain. In the native dialect the message is lost, in the compatible one the
	// pipe is closed. It is channel.ErrForbidden.
	ErrForbidden = channel.ErrForbidden

	// ErrCopy: the system could not copy the memory of a tensor, at the sender or at
	// the receiver, for example because it is a mapping of a truncated file or is not
	// writable; the cause is in the error chain. In the native dialect the message is
	// lost, in the compatible one the pipe is closed. It is channel.ErrCopy.
	ErrCopy = channel.ErrCopy

	// ErrUnopened: a channel could not open its own connections, such as the lanes of
	// mpt; the cause is in the error chain. In the native dialect the pipe continues
	// without them, in the compatible one it is closed. It is channel.ErrUnopened.
	ErrUnopened = channel.ErrUnopened

	// ErrAborted: the sender aborted the message; its reason is in the text. The pipe
	// and its other messages are not affected.
	ErrAborted = errors.New("the sender aborted the message")

	// ErrChecksum: received bytes do not match their checksum. The pipe is closed.
	ErrChecksum = native.ErrChecksum

	// ErrDialect: one end does not support the dialect that Options.Dialect of the
	// other requires. The text has the reason.
	ErrDialect = errors.New("no common dialect")

	// ErrNotAccepted: the listener accepts only pipes and a Conn was dialled, or the
	// reverse. The text names the call that the listener's end needs.
	ErrNotAccepted = errors.New("the listener does not accept this")

	// ErrCloseTimeout: within CloseTimeout not all messages of this end were sent, the
	// peer did not read all eager parts, or it did not close its end.
	ErrCloseTimeout = errors.New("graceful close timed out")

	// ErrMessage: the message given to Write cannot be sent; the text has the reason.
	ErrMessage = errors.New("bad message")

	// ErrAllocation: the memory given to Read does not match the descriptor. The
	// message can still be read.
	ErrAllocation = errors.New("bad allocation")

	// ErrNoControl: the peer cannot confirm messages, because it is a C++ process or
	// an older version of this library.
	ErrNoControl = errors.New("the peer cannot confirm that it has read a message")

	// ErrUnconfirmed: the message was sent and not confirmed. The peer may have read
	// it.
	ErrUnconfirmed = errors.New("the peer has not confirmed that it read the message")

	// ErrAlreadyRead: the message was read or discarded before.
	ErrAlreadyRead = errors.New("message was already read")
)

// Error is the error that calls of this package return. It wraps the cause.
type Error struct {
	Op   string // the call: "dial", "accept", "write", "next", "read", ...
	Peer string // the other end, empty if it is not known yet
	Conn string // the connection within the pipe, as in "descriptor" or "channel basic 0", or empty
	Err  error  // the cause
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("pipe: ")
	b.WriteString(e.Op)
	if e.Peer != "" {
		b.WriteString(" " + e.Peer)
	}
	if e.Conn != "" {
		b.WriteString(" (" + e.Conn + " connection)")
	}
	return b.String() + ": " + e.causeText()
}

// causeText returns the text of e.Err, without the "transport: dial address: " with which the error
// of a transport begins, if that address is in e.Peer.
func (e *Error) causeText() string {
	text := e.Err.Error()
	if name, addr, isURL := strings.Cut(e.Peer, "://"); isURL {
		text = strings.Replace(text, name+": dial "+addr+": ", "", 1)
	}
	return text
}

// Unwrap returns e.Err, the cause, for errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether the cause is an exceeded time limit: HandshakeTimeout, CloseTimeout, the
// Deadline of a message, or one of the network or of a context. A context that the application ended
// with a cause of its own counts if that cause has a method Timeout that returns true. Timeout is
// the method of that name in net.Error.
func (e *Error) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.Is(e.Err, ErrHandshakeTimeout) || errors.Is(e.Err, ErrCloseTimeout) ||
		(errors.As(e.Err, &t) && t.Timeout())
}

// protocolError formats format and args as fmt.Errorf does, and returns an error with that text
// after the text of ErrProtocol. The error matches ErrProtocol and the errors that format wraps
// with %w.
func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrProtocol, fmt.Errorf(format, args...))
}

// limitError returns an error that matches ErrLimit, for a quantity that exceeds its limit. Its
// text has the name of the quantity, the value, and the limit, as the parameters give them.
func limitError(what string, got, limit uint64) error {
	return fmt.Errorf("%w: %s of %d, limit is %d", ErrLimit, what, got, limit)
}

// messageError formats format and args as fmt.Errorf does, and returns an error with that text
// after the text of ErrMessage. The error matches ErrMessage and the errors that format wraps with
// %w.
func messageError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrMessage, fmt.Errorf(format, args...))
}

// allocationError formats format and args as fmt.Errorf does, and returns an error with that text
// after the text of ErrAllocation. The error matches ErrAllocation and the errors that format wraps
// with %w.
func allocationError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrAllocation, fmt.Errorf(format, args...))
}

// classify translates err, the error of a connection or channel, into an error that matches
// ErrPeerClosed, ErrPeerLost or ErrProtocol. An error that matches io.EOF becomes
// ErrPeerClosed itself; any other error is wrapped. classify returns err unchanged if err is nil,
// means none of these three, or matches one of the errors that isKnown lists.
func classify(err error) error {
	switch {
	case err == nil, isKnown(err):
		return err
	case errors.Is(err, io.EOF):
		return ErrPeerClosed
	case errors.Is(err, transport.ErrFrame), errors.Is(err, channel.ErrProtocol):
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	case errors.Is(err, channel.ErrAborted), isConnectionLoss(err):
		return errtext.New(fmt.Sprintf("%v: %s", ErrPeerLost, errtext.OfConnection(err)), ErrPeerLost, err)
	default:
		return err
	}
}

// isKnown reports whether err matches ErrClosed, ErrProtocol, ErrPeerLost, ErrForbidden, ErrCopy,
// ErrUnopened or ErrChecksum, which classify does not translate.
func isKnown(err error) bool {
	for _, known := range []error{ErrClosed, ErrProtocol, ErrPeerLost, ErrForbidden, ErrCopy, ErrUnopened, ErrChecksum} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// isConnectionLoss reports whether err means that a connection has broken: it matches
// io.ErrUnexpectedEOF or io.ErrClosedPipe, or has a net.Error or a syscall.Errno in its chain. An
// error that matches transport.ErrResource does not count, because then the system has denied this
// process a resource.
func isConnectionLoss(err error) bool {
	if errors.Is(err, transport.ErrResource) {
		return false
	}
	var errno syscall.Errno
	var network net.Error
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe) ||
		errors.As(err, &errno) || errors.As(err, &network)
}

// midMessage returns io.ErrUnexpectedEOF if err matches io.EOF, and otherwise err unchanged. It is
// for a connection that ended between two frames while a message was incomplete; the transport
// reports such an end as io.EOF.
func midMessage(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// isPeerGone reports whether err means that the peer has closed the pipe or is lost.
func isPeerGone(err error) bool { return errors.Is(err, ErrPeerClosed) || errors.Is(err, ErrPeerLost) }
