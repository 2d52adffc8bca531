package cudaipc

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// leastPinned is the size in bytes of the smallest block of page-locked memory.
const leastPinned = 4 << 10

// pinnedPool has page-locked host memory, in blocks whose sizes are powers of two. It keeps freed
// blocks, because the driver may wait for the device when memory is freed.
type pinnedPool struct {
	gpu *gpu

	mu      sync.Mutex
	all     []*pinnedBlock
	free    map[int][]*pinnedBlock    // by size
	pending pendingUses[*pinnedBlock] // of blocks that are free after them
	closed  bool
}

// pinnedBlock is page-locked host memory.
type pinnedBlock struct{ data []byte }

// take returns a block of at least size bytes, whose contents are undefined. The context must be
// current. The error is ErrClosed or that of the driver.
func (p *pinnedPool) take(size int) (*pinnedBlock, error) {
	if size > math.MaxInt/2+1 {
		return nil, fmt.Errorf("cudaipc: %d bytes of page-locked memory: %w", size, ErrOutOfMemory)
	}
	class := max(leastPinned, 1<<bits.Len(uint(max(size, 1)-1)))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	p.pending.collect(polledStreams, p.keep)
	if len(p.free[class]) == 0 {
		p.pending.collect(p.pending.all(), p.keep)
	}
	if list := p.free[class]; len(list) > 0 {
		b := list[len(list)-1]
		p.free[class] = list[:len(list)-1]
		return b, nil
	}
	data, err := p.gpu.driver.AllocHost(class)
	if err != nil {
		return nil, fmt.Errorf("cudaipc: %d bytes of page-locked memory: %w", class, err)
	}
	b := &pinnedBlock{data: data}
	p.all = append(p.all, b)
	return b, nil
}

// put frees b after the present work of stream. The context must be current.
func (p *pinnedPool) put(b *pinnedBlock, stream driver.Stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	_ = p.pending.add(b, stream) // after an error the device has failed: the block is not used again
}

// putIdle frees b, which no work uses.
func (p *pinnedPool) putIdle(b *pinnedBlock) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keep(b)
}

func (p *pinnedPool) keep(b *pinnedBlock) {
	if p.free == nil {
		p.free = make(map[int][]*pinnedBlock)
	}
	p.free[len(b.data)] = append(p.free[len(b.data)], b)
}

// close frees all blocks. The device must have no work left.
func (p *pinnedPool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var all []error
	for _, b := range p.all {
		all = append(all, p.gpu.driver.FreeHost(b.data))
	}
	p.all, p.free, p.pending = nil, nil, pendingUses[*pinnedBlock]{}
	return errors.Join(all...)
}

// AllocHost returns size bytes of page-locked host memory with undefined contents, valid on stream:
// copies between it and GPUs, in the order of the stream, do not make the host wait. When the
// memory becomes unreachable it is used again, after the work of stream. It is freed by Close. The
// error matches device.ErrSize, device.ErrStream or ErrClosed, or is that of the driver.
func (k *Kind) AllocHost(size int, stream device.Stream) (device.Buffer, error) {
	s, ok := stream.(*Stream)
	if !ok || s.gpu.kind != k {
		return device.Buffer{}, fmt.Errorf("cudaipc: page-locked memory needs a stream of the device kind: %w", device.ErrStream)
	}
	if size < 0 {
		return device.Buffer{}, fmt.Errorf("cudaipc: alloc of %d bytes of page-locked memory: %w", size, device.ErrSize)
	}
	g := s.gpu
	if err := g.enter(); err != nil {
		return device.Buffer{}, err
	}
	defer g.leave()
	b, err := g.pinned.take(size)
	if err != nil {
		return device.Buffer{}, err
	}
	owner := &pinnedOwner{gpu: g, stream: s.handle, block: b}
	runtime.AddCleanup(owner, func(o pinnedOwner) { o.release() }, *owner)
	return device.Bytes(b.data[:size:size]).WithStream(s).WithOwner(owner), nil
}

// pinnedOwner keeps a block in use while a buffer refers to it.
type pinnedOwner struct {
	gpu    *gpu
	stream driver.Stream
	block  *pinnedBlock
}

func (o *pinnedOwner) release() {
	if o.gpu.enter() != nil {
		return // closed
	}
	defer o.gpu.leave()
	o.gpu.pinned.put(o.block, o.stream)
}

// pageLocked reports whether the driver knows all of p as host memory, so that a copy need not wait. The
// error is that of the driver.
func (g *gpu) pageLocked(p []byte) (bool, error) {
	for _, at := range []driver.Ptr{driver.HostPtr(p), driver.HostPtr(p[len(p)-1:])} {
		kind, err := g.driver.PointerAttribute(driver.PointerMemoryType, at)
		switch {
		case errors.Is(err, driver.ResultInvalidValue): // the driver does not know the address
			return false, nil
		case err != nil:
			return false, err
		case kind != driver.MemoryTypeHost:
			return false, nil
		}
	}
	return true, nil
}
