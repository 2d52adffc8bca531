package pipe

import (
	"cmp"
	"context"
	"runtime"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
)

// nativeIncoming is an Incoming of the native dialect. What travels inside the
// message is in frame from the start.
type nativeIncoming struct {
	Incoming
	in     *nativeInbox
	number uint64 // its place among all messages, from 0
	frame  []byte
	body   []byte         // of frame; nil of a message that came early
	parts  native.Message // decoded, within frame
	large  int            // parts that wait for memory
	packed int            // parts that are compressed
	held   int            // its share of the read-ahead bytes
	memory charge         // frame, inline and parts
	lent   bool           // a device may still read frame

	// The following are of a message that came early, and guarded by
	// messageReader.mu.
	whole  int           // its inline bytes
	coming int           // those that are still in the stream
	into   [][]byte      // where they go, nil if that is inline
	inline []byte        // where they go unless Read comes first
	here   chan struct{} // made by who waits for them, closed when all are here
	room   [][]byte      // memory for into

	claimed  atomic.Bool // someone reads or discards it
	finished atomic.Bool // and has done so

	// The following are guarded by nativeInbox.mu.
	aborted error           // why the peer gave it up
	moving  []nativeArrival // parts that a channel has
	left    int             // of moving, not done
	err     error           // the first error of a part
	untold  bool            // a part has failed, and why is said elsewhere
	told    chan struct{}   // made by who waits for that, closed with aborted
	done    chan struct{}   // closed when left is 0
}

// nativeArrival is a part on its way into memory.
type nativeArrival struct {
	id      uint64
	channel channel.Channel
}

// newIncoming returns an empty message, perhaps one that was released.
func (p *nativePipe) newIncoming() *nativeIncoming {
	in := p.context.incoming.Get().(*nativeIncoming)
	in.in, in.Incoming.pipe, in.of = &p.in, p.Pipe, in
	in.memory = p.newCharge()
	return in
}

func (in *nativeIncoming) read(ctx context.Context, a Allocation) error {
	if ctx.Err() != nil {
		return in.errorFor(context.Cause(ctx))
	}
	if in.large > 0 {
		if err := in.in.pipe.control.awaitRoom(ctx); err != nil {
			return in.errorFor(err)
		}
	}
	if err := in.checkMemory(a); err != nil {
		return in.errorFor(err)
	}
	if !in.claim() {
		return in.errorFor(ErrAlreadyRead)
	}
	err := in.readAll(ctx, a)
	runtime.KeepAlive(a) // the segments that were filled are not what keeps its memory
	in.in.pipe.control.noteRead(in.number)
	in.finish()
	if err != nil {
		return in.errorFor(err)
	}
	in.in.traffic.add(in.desc.Bytes())
	in.countSavings()
	return nil
}

func (in *nativeIncoming) readAll(ctx context.Context, a Allocation) error {
	if in.whole > 0 {
		if done, err := in.takeInline(ctx, a); done || err != nil {
			return err
		}
	}
	if in.large == 0 {
		return in.unpack(ctx, a)
	}
	if err := in.post(a); err != nil {
		return err
	}
	err := in.unpack(ctx, a)
	if err != nil {
		in.withdraw(err)
	}
	if err := cmp.Or(in.wait(ctx), err); err != nil {
		return err
	}
	return in.unpackLarge(ctx, a)
}

func (in *nativeIncoming) isInline() bool { return in.large == 0 }

// claim reports whether the message is now the caller's to read or to let go.
func (in *nativeIncoming) claim() bool { return in.claimed.CompareAndSwap(false, true) }

// finish notes that nothing more happens to the message. It comes behind
// noteRead: a pipe that waits for reads to close then says all that was read.
func (in *nativeIncoming) finish() {
	if in.large > 0 {
		in.in.mu.Lock()
		delete(in.in.open, in.number)
		if in.done != nil {
			in.in.countReads(-1)
		}
		in.in.mu.Unlock()
	}
	in.memory.release()
	in.finished.Store(true)
}

// Memory that is kept for another frame: of so many bytes, and so many parts.
const (
	keptBytes = 2 * growStep
	keptParts = 64
)

// release empties the message and keeps its memory, unless that is much or a
// device may still read it.
func (in *nativeIncoming) release() {
	if !in.finished.Load() {
		return
	}
	c := in.Incoming.pipe.context
	in.parts.Forget()
	clear(in.room[:cap(in.room)])
	*in = nativeIncoming{
		Incoming: Incoming{desc: in.keptDescriptor()},
		frame:    in.keptFrame(),
		parts:    in.parts,
		room:     in.room[:0],
	}
	c.incoming.Put(in)
}

func (in *nativeIncoming) keptFrame() []byte {
	if in.lent {
		return nil
	}
	return kept(in.frame)
}

// kept is the memory of buf, unless it is much.
func kept(buf []byte) []byte {
	if cap(buf) > keptBytes {
		return nil
	}
	return buf[:0]
}

func (in *nativeIncoming) keptDescriptor() Descriptor {
	if max(cap(in.desc.Payloads), cap(in.desc.Tensors)) > keptParts {
		return Descriptor{}
	}
	return in.desc.emptied()
}
