package transport

// Poller is a power that some Streams have besides: to be read and written
// without waiting, and to be watched by who has time for that. Streams through
// shared memory have it. Who waits for an answer then finds it himself, where
// otherwise another goroutine would find it and wake him.
//
// A Stream is read either by Read or by TryRead, not by both. One goroutine at a
// time calls TryRead or Look, one TryWrite or Write, and one Await.
type Poller interface {
	Stream
	TryWriter

	// TryRead reads what is there: 0 bytes and no error if that is nothing.
	// Errors are those of Read, and stay.
	TryRead(p []byte) (int, error)

	// Room waits for a while for room to write, and reports whether there is
	// some, or an error that TryWrite returns.
	Room() bool

	// Await returns when TryRead has something to return, though maybe not what
	// somebody else finds first. It sleeps, and does not hear of what comes
	// between a Look that found something and the next Mind.
	Await()

	// Look looks for a while for something that TryRead can return, and reports
	// whether there is.
	Look() bool

	// LookDue is Look for who waits for one thing that is due, whatever the others of
	// this process wait for.
	LookDue() bool

	// Wake makes Await return.
	Wake()

	// Mind may be called by anybody at any time. It is called some time after a
	// Look that found something, when nobody looks: Await hears of what comes
	// again, and of what has come.
	Mind()
}
