package pipe

import "context"

// Incoming is a message of the peer of which the description has arrived. It
// must be read or discarded, once. In the compatible dialect the messages behind
// it wait for that. All methods but Release may be called from any goroutine.
type Incoming struct {
	pipe *Pipe
	of   receiver
	desc Descriptor
}

// receiver is a dialect's side of an Incoming. Its methods are those of
// Incoming, which documents them.
type receiver interface {
	read(ctx context.Context, a Allocation) error
	discard(ctx context.Context) error
	release()
	isInline() bool
}

// Descriptor describes the message. The caller must not change it; it stays
// valid until Release, or for ever.
func (in *Incoming) Descriptor() *Descriptor { return &in.desc }

// Read receives the message into memory of the caller's choice and returns
// when it has all arrived; buffers on a device with streams are valid on their
// stream. In the compatible dialect messages are read in order: Read waits for
// the memory of earlier messages to be given, not for their bytes. In the native
// dialect they may be read in any order.
//
// An allocation that does not fit is refused with ErrAllocation, and a ctx that
// has ended, or ends while Read waits for its turn, withdraws it; the message can
// then be read again. A ctx that ends later gives up the message, and in the
// compatible dialect, which cannot give up half a message, the pipe. Either way
// nobody touches the memory any more when Read returns.
func (in *Incoming) Read(ctx context.Context, a Allocation) error {
	if err := in.check(a); err != nil {
		return in.errorFor(err)
	}
	if in.pipe.isClosing() {
		return in.errorFor(ErrClosed)
	}
	return in.of.read(ctx, a)
}

// Discard lets the message go by: in the compatible dialect its bytes are
// received and thrown away, in the native one the peer is told to keep what has
// not left. It has the effects that Read has, of ctx too.
func (in *Incoming) Discard(ctx context.Context) error {
	if in.pipe.isClosing() {
		return in.errorFor(ErrClosed)
	}
	return in.of.discard(ctx)
}

// Inline reports whether all of the message travels with its description, so that Read
// waits at most for bytes that come before everything else of this pipe. Messages behind
// it gain nothing if it is read elsewhere.
func (in *Incoming) Inline() bool { return in.of.isInline() }

// Release gives the Incoming back to its pipe, which uses it for another
// message: a loop that calls it allocates nothing for small ones. It is an
// optimisation and never needed. The message must have been read or discarded;
// neither the Incoming nor its Descriptor, metadata included, may be used from
// then on.
func (in *Incoming) Release() { in.of.release() }

func (in *Incoming) errorFor(err error) error { return in.pipe.errorFor("read", "", err) }
