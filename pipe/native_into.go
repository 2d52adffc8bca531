package pipe

import (
	"context"
	"fmt"
	"io"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// A message that was returned early has its inline bytes still in the stream, from
// where Read takes them straight to the memory that it was given. Where another
// message is asked for first they go through memory of the pipe's.

// takeOn takes what is there of the inline bytes. The caller holds messageReader.mu.
func (in *nativeIncoming) takeOn(src io.Reader) (err error) {
	if in.into == nil {
		in.inline, err = readOn(src, in.inline, in.whole, &in.memory, in.cost()-in.whole)
		in.coming = in.whole - len(in.inline)
		return err
	}
	for len(in.into) > 0 {
		n, err := io.ReadFull(src, in.into[0])
		in.coming -= n
		if in.into[0] = in.into[0][n:]; err != nil {
			return err
		}
		in.into = in.into[1:]
	}
	return nil
}

// arrived notes that all inline bytes are where they were to go. The caller holds
// messageReader.mu.
func (in *nativeIncoming) arrived() {
	if in.inline != nil {
		in.parts.SetData(in.inline)
	}
	if in.here != nil {
		close(in.here)
	}
}

// takeInline receives the inline bytes of a message that came early into a, if that
// is plain memory and they have not been received elsewhere. It reports whether it
// did; else they are with the parts, as of any message.
func (in *nativeIncoming) takeInline(ctx context.Context, a Allocation) (bool, error) {
	r := &in.in.reader
	r.mu.Lock()
	if r.open != in {
		r.mu.Unlock()
		return false, nil
	}
	placed := in.placeInline(a)
	if r.hurry(ctx) {
		r.mu.Unlock()
		in.in.foundOne()
		return placed, nil
	}
	in.here = make(chan struct{})
	r.mu.Unlock()
	return placed, in.awaitInline(ctx)
}

// hurry takes the inline bytes of the open message as they come, and reports
// whether all have; else the pipe's own goroutine goes on. The caller holds mu.
func (r *messageReader) hurry(ctx context.Context) bool {
	for range patience {
		err := r.finishOpen()
		if err == nil {
			return true
		}
		if err != errNothing {
			r.err = midMessage(err)
		}
		if r.err != nil || ctx.Err() != nil || !r.poll.Look() {
			break
		}
	}
	r.mind()
	return false
}

// placeInline makes the memory of a what the inline bytes go to, unless some of it
// is not plain memory.
func (in *nativeIncoming) placeInline(a Allocation) bool {
	if in.inline != nil {
		return false // they have begun to arrive elsewhere
	}
	into := append(in.room[:0], a.Payloads...)
	for _, b := range a.Tensors {
		p, ok := b.Contiguous()
		if !ok || b.Stream() != nil || b.Device() != device.CPU() {
			return false
		}
		into = append(into, p)
	}
	in.room, in.into = into, into
	return true
}

// awaitInline waits for another goroutine to receive the rest.
func (in *nativeIncoming) awaitInline(ctx context.Context) error {
	select {
	case <-in.here:
	case <-ctx.Done():
		if in.in.reader.forgo(in) {
			return fmt.Errorf("%w: %w", ErrCancelled, context.Cause(ctx))
		}
	case <-in.in.pipe.down:
		if in.in.reader.forgo(in) {
			return in.in.pipe.Err()
		}
	}
	return nil // all had come
}
