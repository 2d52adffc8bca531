package xth

import (
	"sync"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// description is a tensor that a sender permits its peer to copy. The sender must keep the memory
// valid until the description is revoked or finished. mu guards all fields.
type description struct {
	mu        sync.Mutex
	copyEnded sync.Cond // the phase is not copying any more
	phase     phase
	src       device.Buffer
	written   device.Event // completes when src may be read; nil if it may be read at once
	length    int
	stop      bool  // the sender has requested an end of the copy
	result    error // outcome of the copy; nil if the receiver has all bytes
}

// phase is the state of a description.
type phase int

const (
	available phase = iota // may be copied
	copying                // the receiver is copying
	revoked                // the sender has revoked it
	finished               // the receiver has finished, with any outcome
)

func newDescription() *description {
	o := &description{}
	o.copyEnded.L = &o.mu
	return o
}

// address returns the address of o itself, which the sender announces to the receiver. It is not
// that of the tensor's memory, because the same memory may be described several times.
func (o *description) address() uint64 { return uint64(uintptr(unsafe.Pointer(o))) }

// reset makes o describe the memory of src, which a receiver may then copy until o is revoked or
// finished. o retains src until then, and owns written, the event after which src may be read, or nil.
// o must be new, or finished and not in use by either end.
func (o *description) reset(src device.Buffer, written device.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.src, o.written, o.length = src, written, src.Len()
	o.phase, o.stop, o.result = available, false, nil
}

// size returns the length of the tensor in bytes, also after o was revoked or finished.
func (o *description) size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.length
}

// beginCopy returns the memory of the tensor, which the receiver may read until it calls finish, and
// the event after which it may, or nil. If the sender has revoked o, ok is false. The receiver must
// call it at most once.
func (o *description) beginCopy() (src device.Buffer, written device.Event, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.phase != available {
		return device.Buffer{}, nil, false
	}
	o.phase = copying
	return o.src, o.written, true
}

// drop ends the use of the memory by o. The caller holds mu.
func (o *description) drop() {
	o.src = device.Buffer{}
	if o.written != nil {
		o.written.Release()
		o.written = nil
	}
}

// stopRequested reports whether the sender has called revoke since o was reset. A copy in progress
// must then stop.
func (o *description) stopRequested() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stop
}

// finish ends the use of o by the receiver, and stores result for the sender: nil if all bytes were
// copied, and otherwise why not. It wakes a sender that waits in revoke. The receiver must call it
// once after beginCopy, even if that returned false, and may call it once without beginCopy. After
// finish the receiver must not use o or the memory.
func (o *description) finish(result error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.phase, o.result = finished, result
	o.drop()
	o.copyEnded.Broadcast()
}

// revoke withdraws the tensor: after it, no copy can begin. If a copy is in progress, revoke asks
// it to stop, and waits until it has, which takes the time of one chunk at most. The receiver does
// not use the memory when revoke returns, or has made the stream of the memory wait for its copy. If
// the receiver has called finish, the result of o stays.
func (o *description) revoke() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stop = true
	for o.phase == copying {
		o.copyEnded.Wait()
	}
	if o.phase == available {
		o.phase = revoked
		o.drop()
	}
}

// outcome returns the result that the receiver has passed to finish. If finish has not been called,
// ok is false.
func (o *description) outcome() (result error, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.result, o.phase == finished
}

// chunkSize is the number of bytes copied between two checks of whether to stop, some ten microseconds.
const chunkSize = 256 << 10

// copyDescribed copies the tensor that o describes to dst. If kind is nil both are host memory, and it
// copies in chunks of chunkSize bytes. After each whole chunk it calls interrupted; if that returns an
// error it stops and returns the error. Otherwise it returns nil after the last byte. If kind is not
// nil it enqueues the copy; see enqueueCopy. If o was revoked before the copy began, it returns
// [channel.ErrAborted]; the other errors are those of device.NewHostCopy or enqueueCopy. In all cases
// the caller must call o.finish next.
func copyDescribed(kind device.Kind, dst device.Buffer, o *description, interrupted func() error) error {
	src, written, ok := o.beginCopy()
	if !ok {
		return channel.ErrAborted
	}
	if kind != nil {
		return enqueueCopy(kind, dst, src, written)
	}
	c, err := device.NewHostCopy(dst, src)
	for err == nil && c.Step(chunkSize) == chunkSize {
		err = interrupted()
	}
	return err
}
