package transport

import (
	"context"
	"net"
)

// Stream is an ordered stream of bytes between two processes: a net.Conn whose
// writing direction can be ended alone. After CloseWrite the peer reads what
// was written, then io.EOF; reading goes on.
type Stream interface {
	net.Conn
	CloseWrite() error
}

// Gatherer is a power that some Streams have besides: to write from many places
// at once, and to go on after a deadline. A socket has it; a Stream that
// encrypts or frames what is written to it has not.
type Gatherer interface {
	// WriteBuffers writes pieces in order, as few system calls as it can, and
	// consumes them, as pieces.WriteTo does for a socket. It returns the number
	// of bytes that have left. When a write deadline ended it the next call
	// goes on behind those.
	WriteBuffers(pieces *net.Buffers) (int64, error)
}

// TryWriter is a power that some Streams have besides: to be written without waiting.
type TryWriter interface {
	// TryWrite writes the pieces in order as far as that takes no waiting, and returns
	// how many bytes that were. Errors are those of Write. One goroutine at a time
	// calls TryWrite or Write.
	TryWrite(pieces ...[]byte) (int, error)
}

// Streamer is a power that some Conns have besides: to give up framing. The
// native dialect needs it for its bulk connection.
type Streamer interface {
	// Stream hands over the bytes of the connection as they are, from the next
	// one on in both directions, including those that were read ahead. Nothing
	// may be under way on the Conn. Afterwards its owner may call only its
	// address methods, ConnectionState and Close, which closes the Stream as
	// closing the Stream closes it.
	Stream() (Stream, error)
}

// Multiplexer is a power that some Conns have besides: to carry many streams.
// The native dialect needs it.
type Multiplexer interface {
	// Multiplex turns the connection into a session, from the next byte on in
	// both directions. Both ends call it, at the same point of their
	// conversation; nothing is exchanged. What holds for the Conn after Stream
	// holds after Multiplex; Close of the Conn ends the session.
	Multiplex(SessionConfig) (Session, error)
}

// SessionPreparer is implemented by Conns whose sessions need memory or descriptors of
// the system at both ends.
type SessionPreparer interface {
	// PrepareSession acquires the resources for all streams that the client may
	// open, one of them with OpenBulk, so that Multiplex, Open, OpenBulk and Accept
	// do not fail for lack of descriptors at either end. Both ends call it before Multiplex, with the same Streams as
	// there, or neither does. The server calls it before it writes the last frame
	// that the client reads before Multiplex, and passes the client its part; the
	// client's call blocks until it has that or the Conn is closed. No round trip is
	// added. After an error the Conn still carries frames.
	PrepareSession(SessionConfig) error
}

// SessionConfig says how a session is to behave.
type SessionConfig struct {
	// Client is true at exactly one of the two ends, that which dialled.
	Client bool

	// Streams bounds the streams that the peer may have open at once. More are
	// reset.
	Streams int

	// Window bounds the bytes of one stream that may be on their way or
	// unread, and so the memory that a stream takes at the reading end. A
	// stream begins with less, and gets more as it turns out to need it. 0
	// leaves it to the transport.
	Window int

	// Budget, if it is not nil, is asked before a stream may have more than what
	// it begins with on its way or unread: by the end that reads, or, where the
	// memory of the stream is shared, by the end that writes and sets it aside. It
	// is given back what it gave when the stream or the session is closed, if not
	// before.
	Budget Budget

	// Quota, if it is not nil, is charged for the memory that the session takes for
	// bytes of the peer that are not read yet, and for its own that the peer has not
	// taken. A session in memory that both ends share has no such memory.
	Quota Quota
}

// Quota bounds the memory that peers which are not trusted yet hold together. Its methods
// are called concurrently.
type Quota interface {
	// Charge counts n bytes before they are allocated. It waits until they are free,
	// while the session does not read its connection. It reports false if the session is
	// to be closed, which its owner then does.
	Charge(n int) bool

	// Add counts n bytes and does not wait.
	Add(n int)

	// Release gives back n bytes that were charged or added.
	Release(n int)
}

// Budget is a number of bytes that sessions share. Its methods are called
// concurrently, wait for nothing and call no session.
type Budget interface {
	// Acquire takes n bytes, or nothing where they are not free. It does not
	// wait for them.
	Acquire(n int) bool

	// Release gives n bytes back that were acquired.
	Release(n int)
}

// Session is a connection that carries streams. All methods may be called
// concurrently.
type Session interface {
	// Open makes a stream. It does not wait for the peer, which gets it from
	// Accept, in the order in which the streams were opened.
	Open() (Stream, error)

	// Accept waits for the peer's next stream, until ctx or the session ends.
	Accept(ctx context.Context) (Stream, error)

	// Done is closed when the session has ended, for whatever reason; then Err
	// says why: ErrClosed where this end closed it, io.EOF where the peer did
	// or ended the connection between two of its messages, else what went
	// wrong with the connection or with the peer's manners. What had arrived
	// by then can still be read from the streams.
	Done() <-chan struct{}
	Err() error

	// Close ends the session and its streams. What was written before has left
	// or is lost; who needs it delivered waits for the peer's answer first.
	// Nothing of the session runs when Close returns.
	Close() error
}

// BulkSession is a power that some Sessions have besides: streams for large data, as
// good as a connection of their own would be.
type BulkSession interface {
	Session

	// OpenBulk is Open for a stream that has room for much.
	OpenBulk() (Stream, error)
}
