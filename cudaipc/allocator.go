package cudaipc

import (
	"cmp"
	"errors"
	"runtime"
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

// Sizes of the allocator in bytes.
const (
	blockAlign    = 512      // of the sizes and addresses of blocks
	smallBlock    = 1 << 20  // larger ones are in segments of their own kind
	smallSegment  = 2 << 20  // of small blocks
	sharedSegment = 20 << 20 // of blocks that are larger but below sharedBlock
	sharedBlock   = 10 << 20
	segmentAlign  = 2 << 20 // of the sizes of segments with one block

	collectGrowth = 256 << 20 // bytes in use before the first garbage collection, and least between two
)

// allocator divides the memory of one GPU. The driver allocates segments; the allocator splits them
// into blocks, and keeps free blocks for reuse, because freeing memory of the driver waits for the
// device.
//
// A free block belongs to the stream on which it was used last: new memory for that stream may
// be the block at once, in stream order. Memory for another stream may be the block too, once the
// first stream has no work left, or, if the device has no more memory, after an event wait. A
// block that was used on several streams is free when the events that were recorded on the others
// have completed.
type allocator struct {
	gpu   *gpu
	limit int // bytes of segments, 0 without

	mu       sync.Mutex
	segments []*segment
	free     map[driver.Stream][]*block // sorted by size, then address
	pending  pendingUses[*block]        // of blocks that are free after them
	stats    MemoryStats
	closed   bool

	collectAt  int // bytes in use at which the next garbage collection starts
	collecting bool
}

// segment is memory of the driver. Handles for other processes name segments.
type segment struct {
	base  driver.Ptr
	size  int
	small bool

	importers processes        // that may have mapped it
	handle    driver.IPCHandle // if there is one
}

// block is a part of a segment. The blocks of a segment are linked in the order of their addresses.
type block struct {
	segment    *segment
	ptr        driver.Ptr
	size       int // a multiple of blockAlign
	prev, next *block
	stream     driver.Stream   // on which it was used last
	free       bool            // it is in the list of its stream
	others     []driver.Stream // further streams that have used it, while in use
	uses       int             // by others that have not ended, once it is freed
}

// alloc returns a block of at least size bytes for use on stream, after the work that the stream
// holds now. size is positive. The context must be current. The error is a *MemoryError, ErrClosed, or
// that of the driver.
func (a *allocator) alloc(size int, stream driver.Stream) (*block, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, ErrClosed
	}
	a.collect(polledStreams)
	rounded := (size + blockAlign - 1) / blockAlign * blockAlign
	if rounded < size {
		return nil, a.exhausted(size)
	}
	b, err := a.best(stream, rounded), error(nil)
	if b == nil {
		a.collect(a.pending.all())
		b = a.best(stream, rounded)
	}
	if b == nil {
		b, err = a.move(rounded, stream, true)
	}
	if b == nil && err == nil {
		b, err = a.grow(rounded, stream)
	}
	if b == nil && err == nil {
		b, err = a.move(rounded, stream, false)
	}
	if b == nil {
		return nil, cmp.Or(err, a.exhausted(size))
	}
	a.split(b, rounded)
	a.stats.Allocs++
	a.stats.InUse += b.size
	a.stats.PeakInUse = max(a.stats.PeakInUse, a.stats.InUse)
	if a.stats.InUse >= max(a.collectAt, collectGrowth) {
		a.collectAt = 2 * a.stats.InUse
		a.collectGarbage()
	}
	return b, nil
}

// collectGarbage starts a garbage collection, unless one runs, because the pacing of the collector
// does not count the memory of devices.
func (a *allocator) collectGarbage() {
	if a.collecting {
		return
	}
	a.collecting = true
	go func() {
		runtime.GC()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.collecting = false
	}()
}

func (a *allocator) exhausted(size int) error {
	a.collectGarbage()
	return &MemoryError{Device: a.gpu.device, Size: size, Stats: a.stats, Limit: a.limit}
}

// best removes the smallest free block of stream that has size bytes from its list and returns it,
// or nil. Small blocks are taken only from segments for small blocks, and others not from these.
func (a *allocator) best(stream driver.Stream, size int) *block {
	list := a.free[stream]
	i, _ := slices.BinarySearchFunc(list, size, func(b *block, size int) int { return cmp.Compare(b.size, size) })
	for ; i < len(list); i++ {
		if b := list[i]; b.segment.small == (size <= smallBlock) {
			a.remove(b)
			return b
		}
	}
	return nil
}

// grow returns a new segment as one block, or nil if the limit or the device does not allow it.
func (a *allocator) grow(size int, stream driver.Stream) (*block, error) {
	n := smallSegment
	switch {
	case size <= smallBlock:
	case size < sharedBlock:
		n = sharedSegment
	default:
		n = (size + segmentAlign - 1) / segmentAlign * segmentAlign
	}
	if n < size || a.limit > 0 && a.stats.Held+n > a.limit {
		return nil, nil
	}
	p, err := a.gpu.driver.Alloc(n)
	if errors.Is(err, driver.ResultOutOfMemory) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s := &segment{base: p, size: n, small: size <= smallBlock}
	a.segments = append(a.segments, s)
	a.stats.Segments++
	a.stats.Held += n
	return &block{segment: s, ptr: p, size: n, stream: stream}, nil
}

// move takes over the smallest free block of another stream that has size bytes, or nil if there is
// none. If idle is set it considers only streams without work. Otherwise later work on stream waits
// for the present work of the other one.
func (a *allocator) move(size int, stream driver.Stream, idle bool) (*block, error) {
	var found *block
	for other := range a.free {
		list := a.free[other]
		i, _ := slices.BinarySearchFunc(list, size, func(b *block, size int) int { return cmp.Compare(b.size, size) })
		for ; idle && i < len(list) && list[i].segment.small != (size <= smallBlock); i++ {
		}
		if i == len(list) || found != nil && compareBlocks(list[i], found) >= 0 {
			continue
		}
		if idle {
			if done, err := a.gpu.driver.StreamDone(other); !done || err != nil {
				continue
			}
		}
		found = list[i]
	}
	if found == nil {
		return nil, nil
	}
	if !idle {
		if err := a.gpu.order(stream, found.stream); err != nil {
			return nil, err
		}
	}
	a.remove(found)
	found.stream = stream
	a.stats.Moved++
	return found, nil
}

// split returns the bytes of b beyond size to the list of its stream, if they are worth it.
func (a *allocator) split(b *block, size int) {
	least := blockAlign
	if !b.segment.small {
		least = smallBlock + blockAlign
	}
	if b.size-size < least {
		return
	}
	rest := &block{segment: b.segment, ptr: b.ptr + driver.Ptr(size), size: b.size - size, prev: b, next: b.next, stream: b.stream}
	if b.next != nil {
		b.next.prev = rest
	}
	b.next, b.size = rest, size
	a.insert(rest)
}

// insert adds b to the free blocks of its stream.
func (a *allocator) insert(b *block) {
	if a.free == nil {
		a.free = make(map[driver.Stream][]*block)
	}
	b.free = true
	list := a.free[b.stream]
	i, _ := slices.BinarySearchFunc(list, b, compareBlocks)
	a.free[b.stream] = slices.Insert(list, i, b)
}

// remove removes b from the free blocks of its stream.
func (a *allocator) remove(b *block) {
	b.free = false
	list := a.free[b.stream]
	i, found := slices.BinarySearchFunc(list, b, compareBlocks)
	if found {
		a.free[b.stream] = slices.Delete(list, i, i+1)
	}
}

func compareBlocks(x, y *block) int {
	return cmp.Or(cmp.Compare(x.size, y.size), cmp.Compare(x.ptr, y.ptr))
}
