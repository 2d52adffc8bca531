package transport

// Poller is implemented by Streams that can be read and polled without blocking, such as those
// through shared memory. A goroutine that waits for a reply can then poll the Stream and read the
// reply itself. Without polling, another goroutine would read it and wake the first one.
//
// A Stream is read either by Read or by TryRead, not by both. At a time, one goroutine calls
// TryRead or PollReadable, one TryWrite or Write, and one Wait.
type Poller interface {
	Stream

	// TryRead reads available bytes without blocking: 0 only if there are none, but not always all.
	// Errors are those of Read, and are returned by all later calls.
	TryRead(p []byte) (int, error)

	// PollReadable polls for a bounded time until TryRead has bytes or an error to return, and
	// reports whether it has. If due is set a reply is expected soon: it polls even while other
	// connections of the process are active.
	PollReadable(due bool) bool

	// Readable reports whether TryRead has bytes or an error to return.
	Readable() bool

	// Interrupt makes a PollReadable of another goroutine, for which due is not set, return soon. It
	// may have no effect if none is in progress, or make the next one return at once.
	Interrupt()

	// Wait blocks until TryRead has bytes or an error to return, or Wake is called. Another
	// goroutine may read the bytes first. Between a PollReadable that returns true and the next
	// Arm, bytes that arrive do not wake Wait.
	Wait()

	// Wake makes the current call of Wait return, or the next one.
	Wake()

	// Arm makes arriving bytes wake Wait again after a PollReadable that returned true. If bytes
	// have arrived already, it wakes Wait at once. It must be called once no goroutine polls any
	// more. Any goroutine may call it at any time.
	Arm()

	// ExpectOthers announces that bytes of other streams of the session are expected. If the streams
	// share a connection, and no goroutine polls this one or waits for it, they would otherwise be
	// received only after 10 to 20 ms.
	ExpectOthers()
}

// WritePoller is a Poller through memory that both ends share: bytes are copied there while the peer
// copies others out of it.
type WritePoller interface {
	Poller

	// PollWritable polls for a bounded time until there is space to write, and reports whether
	// there is, or whether TryWrite returns an error.
	PollWritable() bool
}

// WindowedStream is a Stream whose peer bounds the bytes that it has not read yet.
type WindowedStream interface {
	Stream

	// SendWindow returns the number of bytes that the peer accepts now.
	SendWindow() int

	// GrowWindow makes this end accept n more bytes at a time, or fewer if the session's limit, or none if
	// its budget does not permit them.
	GrowWindow(n int)
}
