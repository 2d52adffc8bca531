package transport

import (
	"context"
	"net"
)

// Stream is an ordered stream of bytes between two processes: a net.Conn that can be written without
// blocking, and whose writing half can be closed. It keeps the contract of net.Conn, as
// golang.org/x/net/nettest.TestConn checks it, and io.EOF is not wrapped. A deadline interrupts a
// blocked call with an error whose Timeout method returns true, and loses no bytes. After Close,
// calls in progress and later ones return an error that matches ErrClosed. A peer that closes causes
// other errors.
type Stream interface {
	net.Conn

	// TryWrite writes the pieces in order as far as it can without blocking, and returns the
	// number of bytes written, possibly 0. A Stream that cannot be written that way always
	// returns 0 and nil. Errors are those of Write. One goroutine at a time calls TryWrite or
	// Write.
	TryWrite(pieces ...[]byte) (int, error)

	// CloseWrite closes the writing half: the peer reads the bytes written before, then io.EOF.
	// Reading goes on. Later writes return an error that matches ErrClosed.
	CloseWrite() error
}

// Gatherer is implemented by Streams that can write several buffers at once, and whose writes can
// be resumed after a write deadline.
type Gatherer interface {
	// WriteBuffers writes pieces in order with as few system calls as it can. It removes what it
	// has written from pieces, as pieces.WriteTo does for a socket, and returns the number of
	// these bytes. After a write deadline the next call continues with what remains. A Stream
	// that encrypts may count bytes that it has encrypted and keeps; the next call, also one
	// without pieces, sends these first. A stream of a session may count bytes that it has copied
	// to end a message of the session. WriteBuffers does not keep the memory of pieces.
	WriteBuffers(pieces *net.Buffers) (int64, error)
}

// BulkReader is implemented by Streams whose reader can be woken less often where it needs many bytes.
// ReadBulk is like Read for a caller that goes on until p is full: it may wait until more than one
// byte has arrived. If the stream ends before, it returns the bytes that have arrived.
type BulkReader interface {
	ReadBulk(p []byte) (int, error)
}

// Multiplexer is implemented by Conns that can become a session of many streams, or a stream without
// framing. The native dialect needs sessions: over a Conn that is not a Multiplexer a pipe uses the
// compatible dialect or, if that is not allowed, another transport. Package transport/netconn makes a
// Multiplexer of any net.Conn.
type Multiplexer interface {
	// Stream returns a Stream of the connection's bytes, from the next one on in both
	// directions, including those that were read ahead. No call may be in progress on the Conn.
	// Afterwards only its address methods, PeerIdentity and Close may be called. Closing the
	// Conn closes the Stream, and the reverse. Both have the same addresses. At both ends of a Conn that has sessions and no
	// such Stream the error matches ErrNotSupported; large data is then sent over a stream of
	// the session.
	Stream() (Stream, error)

	// PrepareSession acquires the memory and descriptors for all streams that the client may open,
	// one of them with OpenBulk, so that Multiplex, Open, OpenBulk and Accept do not fail for lack
	// of them at either end. A Conn whose sessions need none does nothing.
	//
	// Either both ends call PrepareSession or neither does. Each passes the SessionConfig that it
	// then passes to Multiplex; MaxStreams must be the same at both ends. The server must call it
	// before it writes the last frame that the client reads before Multiplex, because the call
	// sends the client its share. The client's call blocks until that has arrived or the Conn
	// is closed. After an error the Conn still carries frames. An error of the server's call
	// that matches ErrNotSupported means that this Conn carries no session, as if it were not
	// a Multiplexer.
	PrepareSession(SessionConfig) error

	// Multiplex turns the connection into a session, from the next byte on in both directions.
	// Both ends call it at the same point of their protocol; it exchanges no messages. The Conn
	// may then be used as after Stream; closing it closes the session.
	Multiplex(SessionConfig) (Session, error)
}

// SessionConfig is the configuration of a session.
type SessionConfig struct {
	// Client is true at exactly one of the two ends, the one that dialled.
	Client bool

	// MaxStreams bounds the number of streams that the peer may have open at once. Further ones are
	// reset: their calls fail, and the session goes on.
	MaxStreams int

	// Window bounds the bytes of one stream that were sent and not read, and so the memory that
	// a stream takes at the reading end. A stream begins with less, and gets more as it needs
	// it. With 0 the transport chooses.
	Window int

	// Budget, if it is not nil, is charged for a window that grows beyond its first size: at
	// the end that reads or, if the memory of the stream is shared, at the end that writes and
	// reserves it. The charge is released when the stream or the session is closed, or before.
	Budget Budget

	// Quota, if it is not nil, is charged for the memory that the session takes for bytes of the
	// peer that were not read yet, and for bytes of this end that the connection has not
	// accepted. A session in shared memory takes no such memory.
	Quota Quota
}

// Quota bounds the memory that all peers together hold while this process does not trust them yet.
// A session calls its methods concurrently.
type Quota interface {
	// Charge counts n bytes before they are allocated. It blocks until the quota has them; the
	// session does not read its connection while it blocks. If it returns false, the owner of the
	// session closes the session, and the bytes are not counted.
	Charge(n int) bool

	// TryCharge is Charge without blocking: it returns false, and counts nothing, also if the quota
	// does not have the bytes now.
	TryCharge(n int) bool

	// Add counts n bytes without blocking.
	Add(n int)

	// Release gives back n bytes that were charged or added.
	Release(n int)
}

// Budget is a number of bytes that sessions share. Sessions call its methods concurrently; the
// methods must not block and must not call a session.
type Budget interface {
	// Acquire acquires n bytes if they are free, and reports whether it did.
	Acquire(n int) bool

	// Release gives back n bytes that were acquired.
	Release(n int)
}

// Session is a connection that carries streams. Its methods may be called concurrently.
type Session interface {
	// Open opens a stream. It does not wait for the peer, whose Accept returns streams in the order
	// in which they were opened. After the end of the session it returns the reason that Err
	// returns. Errors of the session's streams match that reason too.
	Open() (Stream, error)

	// OpenBulk is Open for a stream that carries large data as fast as a connection of its own.
	// The error matches ErrNotSupported if the session has no such streams, at both ends.
	OpenBulk() (Stream, error)

	// Accept returns the peer's next stream. It blocks until there is one, or ctx or the session
	// ends. The error is that of ctx, or the reason that Err returns. A call that fails takes no
	// stream.
	Accept(ctx context.Context) (Stream, error)

	// Flush blocks until the peer's end of the session has received all bytes, and ends of streams,
	// that were written before the call. The application there may not have read them. The error is
	// the cause of ctx, or the reason that Err returns.
	Flush(ctx context.Context) error

	// Done returns a channel that is closed when the session has ended. Err returns nil before
	// that, and then the reason: ErrClosed if this end has closed the session, io.EOF if the peer
	// has closed it or the connection between two messages, and otherwise the failure of the
	// connection or the peer's violation of the protocol. The reason may be wrapped, and does not
	// change. Streams and bytes that have arrived can still be accepted and read, unless this end
	// has closed the session. A stream whose writer has not closed its writing half never ends with
	// io.EOF itself.
	Done() <-chan struct{}
	Err() error

	// Close ends the session and its streams. Bytes that were written before are sent or lost; a
	// caller that needs them delivered calls Flush first, or waits for a reply of the peer. No
	// goroutine of the session runs when Close returns. Closing again does nothing and
	// returns nil.
	Close() error
}
