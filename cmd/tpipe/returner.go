package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// maxReturning bounds the messages of one pipe that are on their way back. How
// many bytes they have is bounded by the pipe.
const maxReturning = 64

// returner sends back what comes through one pipe. While messages leave it
// reads on, so that several are in flight.
type returner struct {
	pipe  *pipe.Pipe
	pool  tensor.Allocator
	limit int // bytes of one message
	sent  []returning

	memory *echoMemory // for the messages of all pipes
}

// returning is a message on its way back.
type returning struct {
	op   *pipe.WriteOp
	copy *parcel
}

// run serves the pipe until one end closes it.
func (r *returner) run() error {
	for {
		err := r.next()
		if err == nil {
			continue
		}
		if errors.Is(err, pipe.ErrPeerClosed) || errors.Is(err, pipe.ErrClosed) {
			err = nil
		}
		r.finish(err)
		return err
	}
}

// next takes one message and starts it on its way back. One that its sender
// gives up in the middle goes nowhere; the pipe and the others go on.
func (r *returner) next() error {
	ctx := context.Background() // closing the context of the pipe ends all of this
	in, err := r.pipe.Next(ctx)
	if err != nil {
		return err
	}
	if err := r.check(in.Descriptor()); err != nil {
		return err
	}
	if err := r.reclaim(maxReturning - 1); err != nil {
		return err
	}
	size := in.Descriptor().Bytes()
	if err := r.reserve(size); err != nil {
		return err
	}
	p, err := newParcel(r.pool, in.Descriptor())
	if err != nil {
		r.memory.release(r.pipe, size)
		return err
	}
	if err := in.Read(ctx, p.memory); err != nil {
		r.release(p)
		if errors.Is(err, pipe.ErrAborted) {
			return nil
		}
		return err
	}
	op := r.pipe.WriteAsync(ctx, p.message)
	r.sent = append(r.sent, returning{op, p})
	return op.Err()
}

// check refuses what would take too much memory, before any is taken.
func (r *returner) check(d *pipe.Descriptor) error {
	if n := d.Bytes(); n > r.limit {
		return fmt.Errorf("message of %s, the -limit is %s", byteSize(n), byteSize(r.limit))
	}
	return nil
}

// reserve takes memory for a message of n bytes. Messages of this pipe that are on their
// way back make room first.
func (r *returner) reserve(n int) error {
	for len(r.sent) > 0 {
		if r.memory.tryAcquire(r.pipe, n) {
			return nil
		}
		if err := r.reclaim(len(r.sent) - 1); err != nil {
			return err
		}
	}
	return r.memory.acquire(r.pipe, n)
}

// release gives back the memory of a message that nothing uses any more.
func (r *returner) release(p *parcel) {
	p.release()
	r.memory.release(r.pipe, p.size)
}

// reclaim takes the memory of messages that have left, oldest first, and waits
// for them while more than keep are on their way.
func (r *returner) reclaim(keep int) error {
	for len(r.sent) > 0 {
		first := r.sent[0]
		if len(r.sent) <= keep && !isDone(first.op) {
			break
		}
		if err := first.op.Wait(context.Background()); err != nil {
			return err
		}
		r.release(first.copy)
		r.sent = r.sent[1:]
	}
	return nil
}

func isDone(op *pipe.WriteOp) bool {
	select {
	case <-op.Done():
		return true
	default:
		return false
	}
}

// finish takes the pipe down, in an orderly way if nothing is wrong, and frees
// all memory once nothing touches it.
func (r *returner) finish(cause error) {
	if cause == nil {
		r.pipe.Close()
	} else {
		r.pipe.Abort(cause)
	}
	<-r.pipe.Done()
	for _, s := range r.sent {
		<-s.op.Done()
		r.release(s.copy)
	}
}
