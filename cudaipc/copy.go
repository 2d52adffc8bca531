package cudaipc

import (
	"cmp"
	"context"
	"fmt"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// maxStaged bounds the bytes of host memory that Copy copies through page-locked memory so that it need
// not wait for the device.
const maxStaged = 32 << 20

// Copy enqueues a copy of src to dst on the stream of dst, or else on that of src, after the present
// work of both streams; both then wait for it. If neither has a stream, Copy waits until the copy is
// complete. Devices may differ.
//
// Copy does not wait for the device if host memory is page-locked, see [Kind.AllocHost], or has at most
// 32 MiB, which are copied through page-locked memory. For larger host memory the driver waits for the
// work of the streams. Host memory must be neither used nor changed until the copy is complete in stream
// order.
//
// The error matches device.ErrMemory if neither buffer, or one of device memory, is of this Kind;
// device.ErrStream if a buffer is valid on a stream of another device or kind; or is a
// [*device.LengthError], ErrClosed or that of the driver. Then nothing has been enqueued, unless the driver
// itself has failed.
func (k *Kind) Copy(dst, src device.Buffer) error {
	if dst.IsHost() && src.IsHost() {
		return k.copyThroughDevice(dst, src)
	}
	c, err := k.newCopy(dst, src)
	if err != nil || src.Len() == 0 {
		return err
	}
	if err := c.gpu.enter(); err != nil {
		return err
	}
	defer c.gpu.leave()
	err = c.enqueue()
	for i, b := range [2]device.Buffer{dst, src} { // a part may be enqueued in spite of an error
		err = cmp.Or(err, c.finish(b, c.memory[i]))
	}
	if err == nil && dst.Stream() == nil && src.Stream() == nil {
		err = c.stream.Synchronize(context.Background())
	}
	runtime.KeepAlive(dst)
	runtime.KeepAlive(src)
	return err
}

// copyThroughDevice is Copy between host buffers. The driver copies between host memory only while the
// caller waits, so that the bytes take the way through memory of the device.
func (k *Kind) copyThroughDevice(dst, src device.Buffer) error {
	s, ok := dst.Stream().(*Stream)
	if !ok {
		s, ok = src.Stream().(*Stream)
	}
	switch {
	case dst.Len() != src.Len():
		return &device.LengthError{Dst: dst.Len(), Src: src.Len()}
	case !ok:
		return fmt.Errorf("cudaipc: copy from host to host without a stream of a GPU: %w", device.ErrMemory)
	}
	m, err := s.gpu.alloc(src.Len(), s)
	if err != nil {
		return err
	}
	defer m.release()
	between := device.On(s.gpu.device, m, s)
	if err := k.Copy(between, src); err != nil {
		return err
	}
	return k.Copy(dst, between)
}

// copyOperation is a copy of src to dst on stream. memory and ptr are those of dst and src, nil for
// host memory.
type copyOperation struct {
	gpu      *gpu // of stream
	stream   *Stream
	dst, src device.Buffer
	memory   [2]*Memory
	ptr      [2]driver.Ptr
}

// newCopy checks the arguments of Copy and chooses the stream.
func (k *Kind) newCopy(dst, src device.Buffer) (*copyOperation, error) {
	if dst.Len() != src.Len() {
		return nil, &device.LengthError{Dst: dst.Len(), Src: src.Len()}
	}
	c := &copyOperation{dst: dst, src: src}
	var err error
	for i, b := range [2]device.Buffer{dst, src} {
		if !b.IsHost() {
			if c.memory[i], c.ptr[i], err = k.memoryOf(b); err != nil {
				return nil, err
			}
		}
		if b.Stream() == nil {
			continue
		}
		s, ok := b.Stream().(*Stream)
		if !ok {
			return nil, fmt.Errorf("cudaipc: copy of memory valid on a stream of %v: %w", b.Stream().Device(), device.ErrStream)
		}
		if c.stream == nil {
			c.stream = s
		}
	}
	if c.stream == nil {
		m := c.memory[0]
		if m == nil {
			m = c.memory[1]
		}
		if c.stream, err = m.gpu.defaultStream(); err != nil {
			return nil, err
		}
	}
	c.gpu = c.stream.gpu
	return c, nil
}

// enqueue orders the stream of c after those of the buffers, and enqueues the copy. The context must be
// current.
func (c *copyOperation) enqueue() error {
	for _, b := range [2]device.Buffer{c.dst, c.src} {
		if s, ok := b.Stream().(*Stream); ok {
			if err := c.stream.WaitFor(s); err != nil {
				return err
			}
		}
	}
	for _, d := range c.stream.deliveries.unfinished() {
		if c.src.IsHost() && c.src.Stream() != nil {
			<-d.done // which may write to the source
		}
	}
	if !c.dst.IsHost() && !c.src.IsHost() {
		return c.gpu.driver.Copy(c.ptr[0], c.ptr[1], c.dst.Len(), c.stream.handle)
	}
	host, at := c.dst, c.ptr[1]
	if c.src.IsHost() {
		host, at = c.src, c.ptr[0]
	}
	for _, p := range host.AppendSegments(nil) {
		if err := c.copyHost(p, at); err != nil {
			return err
		}
		at += driver.Ptr(len(p))
	}
	return nil
}

// finish makes the stream of b, dst or src, wait for the copy. Memory m of a device that has no stream
// is used again after the copy, for which no stream of the application waits.
func (c *copyOperation) finish(b device.Buffer, m *Memory) (err error) {
	s, ok := b.Stream().(*Stream)
	switch {
	case ok:
	case m == nil:
		return nil
	case m.gpu == c.gpu:
		s = c.stream
	default: // an event that guards memory must be one of the memory's device
		if s, err = m.gpu.ownStream(&m.gpu.foreign); err != nil {
			return err
		}
	}
	if err := c.gpu.order(s.handle, c.stream.handle); err != nil {
		return err
	}
	if m != nil {
		m.usedOn(s)
	}
	return nil
}

// copyHost enqueues the copy between p, a segment of the host memory, and device memory at at.
func (c *copyOperation) copyHost(p []byte, at driver.Ptr) error {
	toDevice := c.src.IsHost()
	stage := false
	if len(p) <= maxStaged {
		locked, err := c.gpu.pageLocked(p)
		if err != nil {
			return err
		}
		stage = !locked
	}
	if toDevice && stage {
		staged, err := c.gpu.pinned.take(len(p))
		if err != nil {
			return err
		}
		copy(staged.data, p)
		err = c.gpu.driver.Copy(at, driver.HostPtr(staged.data), len(p), c.stream.handle)
		c.gpu.pinned.put(staged, c.stream.handle)
		return err
	}
	if toDevice {
		return c.gpu.driver.Copy(at, driver.HostPtr(p), len(p), c.stream.handle)
	}
	if stage {
		return c.stream.deliver(c.dst, p, at)
	}
	return c.gpu.driver.Copy(driver.HostPtr(p), at, len(p), c.stream.handle)
}
