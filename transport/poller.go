package transport

// Poller is implemented by Streams that can be read, written and polled without blocking, such as
// those through shared memory. A goroutine that waits for a reply can then poll for it, where
// otherwise another goroutine would read it and wake the first one.
//
// A Stream is read either by Read or by TryRead, not by both. At a time, one goroutine calls TryRead
// or Look, one TryWrite or Write, and one Await.
type Poller interface {
	Stream
	TryWriter

	// TryRead reads the available bytes, possibly 0, without blocking. Errors are those of
	// Read, and are returned by all later calls.
	TryRead(p []byte) (int, error)

	// Room polls for a while until there is space to write, and reports whether there is, or
	// whether TryWrite returns an error.
	Room() bool

	// Await blocks until TryRead has bytes or an error to return, or Wake is called. Another
	// goroutine may read the bytes first. Between a Look that returns true and the next Mind,
	// bytes that arrive do not wake Await.
	Await()

	// Look polls for a while until TryRead has bytes or an error to return, and reports whether
	// it has.
	Look() bool

	// LookDue is Look for a reply that is due. It polls even while other connections of the
	// process are active.
	LookDue() bool

	// Wake makes the current call of Await return, or the next one.
	Wake()

	// Mind ends the state that a Look which returned true has left: Await is woken by bytes that
	// arrive, and by those that have arrived. It must be called once no goroutine polls any
	// more. It may be called at any time, by any goroutine.
	Mind()
}
