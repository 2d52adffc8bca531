package bench

import (
	"cmp"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// The memory that messages lie in, in a Spec.
const (
	// BuffersDefault is what an application gets that asks for nothing, for each
	// message by itself: memory of the Go heap here ([tensor.Heap], as
	// pipe.NewAllocation), a block of malloc for Libtensorpipe.
	BuffersDefault = "default"

	// BuffersHuge is one mapping for all messages of a batch, in huge pages
	// where the system has them, for both libraries.
	BuffersHuge = "huge"

	// BuffersPool is a storage of a [tensor.Pool] for each message here, and malloc
	// for Libtensorpipe.
	BuffersPool = "pool"
)

// AllBuffers are the values that Spec.Buffers can have.
func AllBuffers() []string { return []string{BuffersDefault, BuffersHuge, BuffersPool} }

const (
	hugePage  = 2 << 20
	cacheLine = 64 // keeps neighbours in one mapping from sharing one
)

// allocate gets memory for slots of a.size bytes.
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

// allocateMapping gets whole huge pages, all at once.
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

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }
