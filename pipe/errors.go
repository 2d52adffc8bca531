package pipe

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/channel"
)

// Errors that calls of this package return, wrapped in an [*Error] that names
// the peer and the connection. Match them with errors.Is.
var (
	// ErrClosed: this process closed the pipe, listener or context. It is the
	// same value as net.ErrClosed.
	ErrClosed = net.ErrClosed

	// ErrPeerClosed: the peer closed the pipe, and said so. A C++ peer cannot
	// say so: if it is killed while nothing is on its way from this end, that
	// looks like a close. Dial again if there is more to say.
	ErrPeerClosed = errors.New("peer closed the pipe")

	// ErrPeerLost: a connection to the peer broke, or ended in the middle of a
	// message: the peer died, or aborted, or the network failed. The cause
	// follows in the text and in the error chain.
	ErrPeerLost = errors.New("lost the peer")

	// ErrProtocol: the peer sent something that the protocol does not allow.
	// The pipe is closed; other pipes go on.
	ErrProtocol = errors.New("peer broke the protocol")

	// ErrLimit: a message, a peer's claim or a number of connections exceeds a
	// limit of the Options, which can be raised if the size is wanted; or a
	// message has a description that is larger than the peer can take, or in the
	// compatible dialect a part that the transport or the channel has no form for,
	// as a tensor of 4 GiB over shm. Such a message is refused before any of it
	// leaves, and the pipe goes on.
	ErrLimit = errors.New("limit exceeded")

	// ErrOptions: the Options given to New make no sense; the text says which.
	ErrOptions = errors.New("bad options")

	// ErrURL: a URL is not of the form transport://address, or names a
	// transport that the context does not have.
	ErrURL = errors.New("bad url")

	// ErrNoTransport: the two ends share no transport.
	ErrNoTransport = errors.New("no common transport")

	// ErrNoChannel: the two ends share no channel for a pair of devices. The
	// Plan says which channels were refused and why.
	ErrNoChannel = errors.New("no channel for these devices")

	// ErrPolicy: there is no path that the policies of both ends allow. The text says
	// whose it is, and why what it requires is not to be had.
	ErrPolicy = errors.New("policy not met")

	// ErrHandshake: the pipe could not be opened; the cause follows.
	ErrHandshake = errors.New("handshake failed")

	// ErrHandshakeTimeout: the peer did not finish opening the pipe in time.
	ErrHandshakeTimeout = errors.New("handshake timed out")

	// ErrCancelled: a call was cancelled when part of its message had left. In
	// the compatible dialect that closes the pipe.
	ErrCancelled = errors.New("a call was cancelled in the middle of a message")

	// ErrForbidden: the system does not let a channel do any more what it did when
	// the pipe was opened; the cause follows. In the native dialect that message
	// is lost, in the compatible one the pipe. It is channel.ErrForbidden.
	ErrForbidden = channel.ErrForbidden

	// ErrCopy: the system could not copy the memory of a tensor, at the sender or at
	// the receiver, as where it is mapped and its file gone, or may not be written to;
	// the cause follows. In the native dialect that message is lost, in the compatible
	// one the pipe. It is channel.ErrCopy.
	ErrCopy = channel.ErrCopy

	// ErrUnopened: a channel could not open what it opens by itself, such as the
	// lanes of mpt; the cause follows. In the native dialect the pipe does without, in
	// the compatible one it is closed. It is channel.ErrUnopened.
	ErrUnopened = channel.ErrUnopened

	// ErrAborted: the sender gave up the message in the middle; its reason
	// follows. The pipe and the other messages go on.
	ErrAborted = errors.New("the sender gave up the message")

	// ErrChecksum: bytes changed on their way. The pipe is closed.
	ErrChecksum = errors.New("checksum does not match")

	// ErrDialect: one end does not speak the dialect that Options.Dialect of the
	// other requires. The cause follows.
	ErrDialect = errors.New("no common dialect")

	// ErrCloseTimeout: a graceful close gave up waiting, for writes of this
	// end to leave or for the peer to close its end.
	ErrCloseTimeout = errors.New("graceful close timed out")

	// ErrMessage: the message given to Write cannot be sent.
	ErrMessage = errors.New("bad message")

	// ErrAllocation: the memory given to Read does not fit the message. The
	// message can still be read.
	ErrAllocation = errors.New("bad allocation")

	// ErrNoControl: the peer cannot confirm messages; it is a C++ process, or
	// of a version that does not know how.
	ErrNoControl = errors.New("the peer cannot confirm that it has read a message")

	// ErrUnconfirmed: the message has left, and the peer has not confirmed
	// that it read it. It may have.
	ErrUnconfirmed = errors.New("the peer has not confirmed that it read the message")

	// ErrAlreadyRead: the message was read or discarded before.
	ErrAlreadyRead = errors.New("message was already read")
)

// Error is the error of a call: what was tried, with whom, on which
// connection, and why it failed.
type Error struct {
	Op   string // the call: "dial", "accept", "write", "next", "read", ...
	Peer string // the other end, empty if it is not known yet
	Conn string // the connection within the pipe, as in "descriptor" or "channel basic 0"; empty if none in particular
	Err  error
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
	return b.String() + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout makes Error a net.Error: it reports whether time ran out.
func (e *Error) Timeout() bool {
	var t interface{ Timeout() bool }
	return errors.Is(e.Err, ErrHandshakeTimeout) || errors.Is(e.Err, ErrCloseTimeout) ||
		(errors.As(e.Err, &t) && t.Timeout())
}

// protocolError says what the peer did wrong.
func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrProtocol, fmt.Errorf(format, args...))
}

// limitError says which limit was exceeded.
func limitError(what string, got, limit uint64) error {
	return fmt.Errorf("%w: %s of %d, limit is %d", ErrLimit, what, got, limit)
}

// messageError says what is wrong with a message given to Write.
func messageError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrMessage, fmt.Errorf(format, args...))
}

// allocationError says what is wrong with an allocation given to Read.
func allocationError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrAllocation, fmt.Errorf(format, args...))
}
