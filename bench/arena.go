package bench

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// memory is the memory of the messages of a batch at one end, one slot for each. It is used by one
// goroutine at a time. The methods have the contracts of those of arena.
type memory interface {
	resize(slots, size int) error
	release()
	message(i int, named bool) *pipe.Message
	allocation(i int) pipe.Allocation
	fill(slots, first int) error
	check(slots, first int) error

	// settle blocks until the work on slot i is done that pipes have enqueued, and returns its error.
	settle(i int) error
}

// arena is the memory on the host: memory for the messages of a batch, one slot of size bytes each. A message is sent from a
// slot of one arena and read into a slot of another one. An arena is used by one goroutine at a time
// and reuses its memory for the next batch.
type arena struct {
	buffers string // as in Spec
	contents
	pool   *tensor.Pool
	size   int
	owners []*tensor.Storage // the storage of each slot
	slots  [][]byte
}

// resize zeroes the slots 0 to slots-1 of the arena, which touches all their pages. If the arena
// has fewer slots, or its slots do not have size bytes, resize first frees its memory and allocates
// as many slots of size bytes. No message may be using the arena. The error is that of the
// allocator.
func (a *arena) resize(slots, size int) error {
	if slots > len(a.slots) || size != a.size {
		a.release()
		a.size = size
		if err := a.allocate(slots); err != nil {
			return err
		}
	}
	a.clear(slots)
	return nil
}

// release frees all slots and returns unused memory of the process to the system, because the next
// measurement may need as much. No message may be using the arena. The arena can be used again
// after resize.
func (a *arena) release() {
	for i, s := range a.owners {
		if i == 0 || s != a.owners[i-1] {
			s.Release()
		}
	}
	a.owners, a.slots = nil, nil
	switch {
	case a.buffers == BuffersDefault:
		debug.FreeOSMemory()
	case a.pool != nil:
		a.pool.Trim()
	}
}

// slot returns the memory of slot i itself, not a copy.
func (a *arena) slot(i int) []byte { return a.slots[i] }

// clear zeroes the bytes of the slots 0 to slots-1, so that bytes of an earlier batch are not taken
// for new ones.
func (a *arena) clear(slots int) {
	for _, s := range a.slots[:slots] {
		clear(s)
	}
	runtime.KeepAlive(a.owners)
}

// message returns a message whose only tensor is the memory of slot i, or an empty message if slots
// have a size of 0. If named is true the tensor names the host as its target device. The arena must
// not be resized or released while the message is in use.
func (a *arena) message(i int, named bool) *pipe.Message {
	m := &pipe.Message{}
	if a.size == 0 {
		return m
	}
	t := pipe.Tensor{Buffer: device.Bytes(a.slots[i]).WithOwner(a.owners[i]), Compression: a.compression}
	if named {
		t.TargetDevice = device.CPU()
	}
	m.Tensors = []pipe.Tensor{t}
	return m
}

// allocation returns the memory of slot i as the destination of a message that has one tensor. It
// is empty if slots have a size of 0. The arena must not be resized or released while a message is
// read into it.
func (a *arena) allocation(i int) pipe.Allocation {
	if a.size == 0 {
		return pipe.Allocation{}
	}
	return pipe.Allocation{Tensors: []device.Buffer{device.Bytes(a.slots[i]).WithOwner(a.owners[i])}}
}

// fill writes the contents of the messages with the numbers first, first+1 and so on into the slots
// 0 to slots-1. It returns nil.
func (a *arena) fill(slots, first int) error {
	g := a.generator()
	for i, s := range a.slots[:slots] {
		g.fill(s, first+i)
	}
	runtime.KeepAlive(a.owners)
	return nil
}

// settle returns nil: the bytes are in host memory when a pipe has returned them.
func (a *arena) settle(int) error { return nil }

// check compares the slots 0 to slots-1 with the contents that fill writes with the same arguments.
// It returns nil if they are equal, and otherwise an error that matches ErrCorrupt and names the
// first difference.
func (a *arena) check(slots, first int) error {
	defer runtime.KeepAlive(a.owners)
	g := a.generator()
	for i, s := range a.slots[:slots] {
		if at := g.difference(s, first+i); at >= 0 {
			return fmt.Errorf("%w: message %d differs in the 8 bytes at %d", ErrCorrupt, first+i, at)
		}
	}
	return nil
}

// memoryPool holds the memory that no batch is using. A pipe takes one for each batch, so that the
// memory of a process does not depend on what its pipes carried before. Its methods may be called
// concurrently.
type memoryPool struct {
	fresh func() (memory, error) // returns memory without slots

	mu   sync.Mutex
	free []memory
}

// get removes an element from the pool and returns it, or returns a fresh one if the pool is empty. The
// caller gives it back with put. The error is that of fresh.
func (p *memoryPool) get() (memory, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.free)
	if n == 0 {
		return p.fresh()
	}
	last := p.free[n-1]
	p.free = p.free[:n-1]
	return last, nil
}

// put adds m to the pool, for a later call of get. m keeps its memory, which no message may use any
// more.
func (p *memoryPool) put(m memory) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, m)
}

// Values of Spec.Buffers: the memory of the messages.
const (
	// BuffersDefault is the memory that an application gets by default, separate for each
	// message: memory of the Go heap for this library ([tensor.Heap], as pipe.NewAllocation
	// uses), a block of malloc for Libtensorpipe.
	BuffersDefault = "default"

	// BuffersHuge is one mapping for all messages of a batch, in huge pages if the system
	// has them, for both libraries.
	BuffersHuge = "huge"

	// BuffersPool is a storage of a [tensor.Pool] for each message of this library, and
	// malloc for Libtensorpipe.
	BuffersPool = "pool"
)

// AllBuffers returns a new slice of the valid values of Spec.Buffers.
func AllBuffers() []string { return []string{BuffersDefault, BuffersHuge, BuffersPool} }

const (
	hugePage  = 2 << 20
	cacheLine = 64 // alignment of slots in one mapping
)

// allocate appends slots slots of a.size bytes each to an arena without slots, in the kind of
// memory that a.buffers names. The error is that of the allocator; some slots may then have been
// appended.
func (a *arena) allocate(slots int) error {
	a.pool = cmp.Or(a.pool, tensor.NewPool(tensor.PoolOptions{}))
	if a.buffers == BuffersHuge {
		return a.allocateMapping(slots)
	}
	var source tensor.Allocator = tensor.Heap{}
	if a.buffers == BuffersPool {
		source = a.pool
	}
	for range slots {
		s, err := source.Alloc(a.size)
		if err != nil {
			return err
		}
		data, err := s.Bytes()
		if err != nil {
			return err
		}
		a.owners, a.slots = append(a.owners, s), append(a.slots, data)
	}
	return nil
}

// allocateMapping appends slots slots of a.size bytes each to an arena without slots. They lie in
// one mapping of whole huge pages, each at a multiple of 64 bytes. The error is that of the
// allocator.
func (a *arena) allocateMapping(slots int) error {
	stride := max(roundUp(a.size, cacheLine), cacheLine)
	s, err := a.pool.Alloc(roundUp(slots*stride, hugePage))
	if err != nil {
		return err
	}
	data, err := s.Bytes()
	if err != nil {
		return err
	}
	for i := range slots {
		at := i * stride
		a.slots = append(a.slots, data[at:at+a.size:at+a.size])
	}
	a.owners = slices.Repeat([]*tensor.Storage{s}, slots)
	return nil
}

// roundUp returns n rounded up to a multiple of unit.
func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }
