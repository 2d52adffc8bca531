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

// address returns the address that the sender announces: that of o itself, not of the memory, because
// the same tensor may be described several times.
func (o *description) address() uint64 { return uint64(uintptr(unsafe.Pointer(o))) }

// reset makes o describe src, so that a receiver may copy it. o must be new, or finished and used by
// neither end any more.
func (o *description) reset(src device.Buffer) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.src, o.length = src, src.Len()
	o.phase, o.stop, o.result = available, false, nil
}

// size returns the length of the tensor in bytes, also after o was revoked or finished.
func (o *description) size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.length
}

// beginCopy returns the memory of the tensor to the receiver, which may read it until it calls finish.
// ok is false if the sender has revoked o.
func (o *description) beginCopy() (src device.Buffer, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.phase != available {
		return device.Buffer{}, false
	}
	o.phase = copying
	return o.src, true
}

// stopRequested reports whether the sender has called revoke, so that a running copy must stop.
func (o *description) stopRequested() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stop
}

// finish stores result for the sender: nil after all bytes were copied, otherwise why not. The
// receiver calls it once after beginCopy, whatever that returned, and must not use the memory or o
// afterwards. Without beginCopy it calls finish at most once: a native Recv that ends while it is
// queued leaves o as it is.
func (o *description) finish(result error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.phase, o.result, o.src = finished, result, device.Buffer{}
	o.copyEnded.Broadcast()
}

// revoke withdraws the tensor: no copy can begin, and a running one is asked to stop. It returns when
// the receiver does not use the memory any more, after at most the time of a chunk. A finished
// description stays finished.
func (o *description) revoke() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stop = true
	for o.phase == copying {
		o.copyEnded.Wait()
	}
	if o.phase == available {
		o.phase, o.src = revoked, device.Buffer{}
	}
}

// outcome returns the result that the receiver has passed to finish. ok is false before that.
func (o *description) outcome() (result error, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.result, o.phase == finished
}

// chunkSize is the number of bytes copied between two checks of whether to stop, some ten microseconds.
const chunkSize = 256 << 10

// copyDescribed copies the tensor of o to dst in chunks, and returns nil after the last byte. Between
// two chunks it calls interrupted, and returns its error. It returns [channel.ErrAborted] if o was
// revoked before, and an error of device.NewHostCopy if dst does not fit. The caller must call
// o.finish in all cases.
func copyDescribed(dst device.Buffer, o *description, interrupted func() error) error {
	src, ok := o.beginCopy()
	if !ok {
		return channel.ErrAborted
	}
	c, err := device.NewHostCopy(dst, src)
	for err == nil && c.Step(chunkSize) == chunkSize {
		err = interrupted()
	}
	return err
}
