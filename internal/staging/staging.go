// Package staging receives bytes for host memory that work on a stream still uses. The bytes are
// received into other memory, and the device kind of the stream copies them in stream order, so that
// no receiver waits for a device.
package staging

import (
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/hugepage"
)

// Needed reports whether one of the buffers is host memory that is valid on a stream. It does not
// allocate.
func Needed(buffers []device.Buffer) bool {
	for i := range buffers { // a Buffer is large, and its methods are inlined
		if buffers[i].Stream() != nil && buffers[i].IsHost() {
			return true
		}
	}
	return false
}

// Budget bounds the staging memory of all its Receives, which is in use until the streams have copied
// it. It never blocks. All methods may be called concurrently.
type Budget struct {
	size int

	mu      sync.Mutex
	used    int
	copies  []enqueuedCopy // those whose memory may still be in use
	checkAt int            // the length of copies at which completed ones are removed
}

// enqueuedCopy is a copy out of staging memory, which counts as a number of bytes until done completes.
type enqueuedCopy struct {
	bytes int
	done  device.Event
}

// overhead is the memory, in bytes, that a copy takes in addition to its own bytes, in the queue of the
// stream and in the Budget. It bounds the number of small copies.
const overhead = 512

// New returns a Budget of size bytes.
func New(size int) *Budget { return &Budget{size: size} }

// reserve acquires the bytes for a copy of n bytes if they are free, and reports whether it did. The
// caller must call release or releaseAfter with the same n.
func (b *Budget) reserve(n int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.copies) >= b.checkAt || n+overhead > b.size-b.used {
		b.releaseCompleted()
	}
	if n+overhead > b.size-b.used {
		return false
	}
	b.used += n + overhead
	return true
}

// releaseCompleted releases the bytes of the copies that have completed. The caller holds mu.
func (b *Budget) releaseCompleted() {
	b.copies = slices.DeleteFunc(b.copies, func(c enqueuedCopy) bool {
		completed, _ := c.done.Done()
		if completed {
			b.used -= c.bytes
			c.done.Release()
		}
		return completed
	})
	b.checkAt = 2*len(b.copies) + 16
}

func (b *Budget) release(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n + overhead
}

// releaseAfter releases what reserve has acquired for n once the present work of s has completed, or
// at once if s accepts no work any more.
func (b *Budget) releaseAfter(n int, s device.Stream) {
	done, err := s.Record()
	if err != nil {
		b.release(n)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.copies = append(b.copies, enqueuedCopy{n + overhead, done})
}

// Receive is the receipt of some buffers. The caller must end it with End.
type Receive struct {
	// Memory has a buffer for each buffer given to Begin, of the same length. Host memory in it has no
	// stream, and can be written to at once.
	Memory []device.Buffer

	budget *Budget
	copies []stagedCopy
}

// stagedCopy is a copy of Receive.Memory[index] to dst, to be made by kind.
type stagedCopy struct {
	index int
	dst   device.Buffer
	kind  device.Kind
}

// Begin returns a Receive into buffers. Host memory whose stream has work to do is replaced by new
// host memory, within b, and other host memory is used itself. If kinds lacks the kind of the stream,
// or b has too few bytes left, Begin calls await instead, which must block until the work before an
// event is done, and then uses the memory itself. An error is that of await, or of a stream that
// accepts no work.
func (b *Budget) Begin(buffers []device.Buffer, kinds []device.Kind, await func(device.Event) error) (*Receive, error) {
	r := &Receive{Memory: slices.Clone(buffers), budget: b}
	for i, dst := range buffers {
		if !dst.IsHost() || dst.Stream() == nil {
			continue
		}
		if err := r.stage(i, dst, kinds, await); err != nil {
			_ = r.End(false)
			return nil, err
		}
	}
	return r, nil
}

// stage sets Memory[i] to memory into which bytes for dst can be received now. See Begin.
func (r *Receive) stage(i int, dst device.Buffer, kinds []device.Kind, await func(device.Event) error) error {
	r.Memory[i] = dst.WithStream(nil)
	ready, err := dst.Stream().Record()
	if err != nil {
		return err
	}
	defer ready.Release()
	if done, err := ready.Done(); done && err == nil {
		return nil
	}
	k := slices.IndexFunc(kinds, func(k device.Kind) bool { return k.Name() == dst.Stream().Device().Kind })
	if k < 0 || !r.budget.reserve(dst.Len()) {
		return await(ready)
	}
	r.Memory[i] = device.Bytes(hugepage.Make(dst.Len()))
	r.copies = append(r.copies, stagedCopy{i, dst, kinds[k]})
	return nil
}

// End ends the receipt. If received is true, it enqueues the copies to the buffers that were given to
// Begin, on their streams, and returns the first error of a kind; later buffers are then unchanged.
// If received is false, it copies nothing and returns nil. Nothing may write to Memory any more.
func (r *Receive) End(received bool) (err error) {
	for _, c := range r.copies {
		if received && err == nil {
			err = c.kind.Copy(c.dst, r.Memory[c.index])
		}
		if received && err == nil {
			r.budget.releaseAfter(c.dst.Len(), c.dst.Stream())
		} else {
			r.budget.release(c.dst.Len())
		}
	}
	return err
}
