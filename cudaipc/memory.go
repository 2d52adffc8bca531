package cudaipc

import (
	"fmt"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// Memory is memory of a GPU, allocated by a Kind or by the application. It implements
// [device.Memory].
type Memory struct {
	gpu   *gpu
	ptr   driver.Ptr
	size  int
	block *block // nil for memory of the application
	free  runtime.Cleanup
}

// Len returns the size in bytes.
func (m *Memory) Len() int { return m.size }

// Ptr returns the address of the first byte on the device. The caller must keep m reachable while
// it uses the address, and order its work after that of the stream of the buffer. It is 0 for
// memory of no bytes.
func (m *Memory) Ptr() driver.Ptr { return m.ptr }

// Alloc returns a buffer of size bytes on d with undefined contents, valid on stream, or on the
// default stream of d if stream is nil. It never waits for the device. When the memory becomes
// unreachable it is used again, after the work of all streams on which the Kind has used it; work
// of the application on further streams must be announced with [Kind.RecordStream].
//
// The error matches device.ErrDevice, device.ErrStream, device.ErrSize, ErrClosed or
// ErrOutOfMemory, or is that of the driver. If the memory is exhausted, Alloc starts a garbage
// collection, because unreachable buffers hold memory until then; [Kind.Trim] frees the free
// memory that is in pieces too small.
func (k *Kind) Alloc(d device.Device, size int, stream device.Stream) (device.Buffer, error) {
	g, err := k.gpuOf(d)
	if err != nil {
		return device.Buffer{}, err
	}
	if size < 0 {
		return device.Buffer{}, fmt.Errorf("cudaipc: alloc of %d bytes on %v: %w", size, d, device.ErrSize)
	}
	s, err := g.streamFor(stream)
	if err != nil {
		return device.Buffer{}, err
	}
	m, err := g.alloc(size, s)
	if err != nil {
		return device.Buffer{}, err
	}
	return device.On(d, m, s), nil
}

// streamFor returns stream as a stream of g, or the default stream if it is nil. The error matches
// device.ErrStream if it is of another device or kind.
func (g *gpu) streamFor(stream device.Stream) (*Stream, error) {
	s, ok := stream.(*Stream)
	if stream == nil || ok && s == nil {
		return g.defaultStream()
	}
	if !ok || s.gpu != g {
		return nil, fmt.Errorf("cudaipc: memory of %v on a stream of %v: %w", g.device, stream.Device(), device.ErrStream)
	}
	return s, nil
}

// alloc returns memory for use on s.
func (g *gpu) alloc(size int, s *Stream) (*Memory, error) {
	m := &Memory{gpu: g, size: size}
	if size == 0 {
		return m, nil
	}
	if err := g.enter(); err != nil {
		return nil, err
	}
	defer g.leave()
	b, err := g.memory.alloc(size, s.handle)
	if err != nil {
		return nil, err
	}
	m.ptr, m.block = b.ptr, b
	m.free = runtime.AddCleanup(m, g.memory.put, b)
	runtime.KeepAlive(s)
	return m, nil
}

// release frees m before it becomes unreachable. It must be called once at most, and m must not be
// used by later calls.
func (m *Memory) release() {
	if m.block != nil {
		m.free.Stop()
		runtime.KeepAlive(m) // otherwise the cleanup may be queued before Stop, and run too
		m.gpu.memory.put(m.block)
	}
}

// Wrap returns a buffer of size bytes at p, device memory of the application, valid on stream. The
// device is that of the address, and nil stands for its default stream. The error matches
// device.ErrMemory if p is not memory of a device of this Kind, or device.ErrStream.
//
// The application frees the memory, after everything that uses the buffer. If a tensor in its allocation
// was sent through cuda_ipc, the peer keeps the whole allocation mapped until its channels to this process
// are closed; CUDA does not define what happens if the memory is freed before. [Kind.CheckFree] reports
// whether a living process may have mapped it.
func (k *Kind) Wrap(p driver.Ptr, size int, stream *Stream) (device.Buffer, error) {
	d, err := k.DeviceOf(p)
	if err != nil {
		return device.Buffer{}, err
	}
	g, err := k.gpuOf(d)
	if err != nil {
		return device.Buffer{}, err
	}
	s, err := g.streamFor(stream)
	if err != nil {
		return device.Buffer{}, err
	}
	if err := g.checkRange(p, size); err != nil {
		return device.Buffer{}, err
	}
	return device.On(d, &Memory{gpu: g, ptr: p, size: size}, s), nil
}

// checkRange returns an error that matches device.ErrMemory unless the size bytes at p are in one
// allocation.
func (g *gpu) checkRange(p driver.Ptr, size int) error {
	if err := g.enter(); err != nil {
		return err
	}
	defer g.leave()
	base, n, err := g.driver.AddressRange(p)
	if err != nil {
		return fmt.Errorf("cudaipc: memory at %#x (%w): %w", uintptr(p), err, device.ErrMemory)
	}
	if size < 0 || int(p-base) > n-size {
		return fmt.Errorf("cudaipc: %d bytes at %#x are not in one allocation of %v: %w", size, uintptr(p), g.device, device.ErrMemory)
	}
	return nil
}

// DeviceOf returns the GPU on which the memory at p is. It needs no current context. The error
// matches device.ErrMemory if p is no device memory.
func (k *Kind) DeviceOf(p driver.Ptr) (device.Device, error) {
	kind, err := k.driver.PointerAttribute(driver.PointerMemoryType, p)
	if err == nil && kind != driver.MemoryTypeDevice {
		err = driver.ResultInvalidValue
	}
	var index int64
	if err == nil {
		index, err = k.driver.PointerAttribute(driver.PointerDevice, p)
	}
	if err != nil {
		return device.Device{}, fmt.Errorf("cudaipc: %#x is no device memory (%w): %w", uintptr(p), err, device.ErrMemory)
	}
	return device.Device{Kind: Name, Index: int(index)}, nil
}

// RecordStream announces that work of the application on s uses the memory of b, so that the memory
// is not used again before this work is done. Call it after the work is enqueued, while b is
// reachable. The error matches device.ErrMemory or device.ErrStream.
func (k *Kind) RecordStream(b device.Buffer, s *Stream) error {
	m, _, err := k.memoryOf(b)
	if err != nil {
		return err
	}
	if s == nil || s.gpu.device != m.gpu.device {
		return fmt.Errorf("cudaipc: memory of %v used on a stream of another device: %w", b.Device(), device.ErrStream)
	}
	m.usedOn(s)
	return nil
}

// usedOn records that work on s uses m.
func (m *Memory) usedOn(s *Stream) {
	if m.block != nil && m.block.stream != s.handle {
		m.gpu.memory.use(m.block, s.handle)
	}
}

// memoryOf returns the memory of b, which must be of a Kind of this process and, if b has a stream,
// valid on one of its device, and the address of the first byte of b. The error matches
// device.ErrMemory or device.ErrStream.
func (k *Kind) memoryOf(b device.Buffer) (*Memory, driver.Ptr, error) {
	mem, offset := b.Memory()
	m, ok := mem.(*Memory)
	if !ok || m.gpu.device != b.Device() {
		return nil, 0, fmt.Errorf("cudaipc: %v is no memory of this device kind: %w", b.Device(), device.ErrMemory)
	}
	if s, ok := b.Stream().(*Stream); b.Stream() != nil && (!ok || s.gpu.device != m.gpu.device) {
		return nil, 0, fmt.Errorf("cudaipc: memory of %v on a stream of %v: %w", b.Device(), b.Stream().Device(), device.ErrStream)
	}
	return m, m.ptr + driver.Ptr(offset), nil
}

// Stats returns the statistics of the memory of d. They are zero for a device that the Kind has
// not used. The error matches device.ErrDevice or ErrClosed.
func (k *Kind) Stats(d device.Device) (MemoryStats, error) {
	g, err := k.gpuOf(d)
	if err != nil {
		return MemoryStats{}, err
	}
	g.memory.mu.Lock()
	defer g.memory.mu.Unlock()
	return g.memory.stats, nil
}

// Trim returns memory of d that is kept for reuse to the driver, which waits until the device has no
// work left. It is for programs that share a device. The error matches device.ErrDevice or
// ErrClosed, or is that of the driver.
func (k *Kind) Trim(d device.Device) error {
	g, err := k.gpuOf(d)
	if err != nil {
		return err
	}
	if err := g.enter(); err != nil {
		return err
	}
	defer g.leave()
	return g.memory.trim()
}
