package device

import (
	"fmt"
	"runtime"
)

// CopyHost copies the bytes of src to dst. Both must be host memory of the same length, but may be
// divided into different segments. It ignores streams: the caller must order the access. The error
// matches [ErrMemory] if one of the two is not host memory, and otherwise is a [*LengthError] if
// the lengths differ. After an error nothing has been copied.
func CopyHost(dst, src Buffer) error {
	c, err := NewHostCopy(dst, src)
	if err != nil {
		return err
	}
	c.Step(src.Len())
	return nil
}

// HostCopy is a copy between host buffers that is made in steps, so that it can be stopped between
// two of them. Its steps allocate nothing.
//
// It keeps the owners of both buffers reachable until its last Step.
type HostCopy struct {
	dst, src cursor
	owners   [2]any
}

// NewHostCopy returns a copy of src to dst for [HostCopy.Step] to make; it copies nothing itself.
// Both must be host memory of the same length. The error matches [ErrMemory] if one of the two is
// not host memory, and otherwise is a [*LengthError] if the lengths differ. The HostCopy shares the
// memory of both, and keeps their owners reachable.
func NewHostCopy(dst, src Buffer) (HostCopy, error) {
	if !dst.IsHost() || !src.IsHost() {
		return HostCopy{}, fmt.Errorf("device: host copy from %v to %v: %w", src.Device(), dst.Device(), ErrMemory)
	}
	if dst.Len() != src.Len() {
		return HostCopy{}, &LengthError{Dst: dst.Len(), Src: src.Len()}
	}
	return HostCopy{dst: newCursor(dst), src: newCursor(src), owners: [2]any{dst.owner, src.owner}}, nil
}

// Step copies the next bytes, at most limit, and returns their number. The number is less than
// limit only if the copy has reached its end, and 0 if it had reached the end before. Step must not
// be called concurrently.
func (c *HostCopy) Step(limit int) int {
	total := 0
	for total < limit {
		dst, src := c.dst.rest(), c.src.rest()
		n := copy(dst, src[:min(len(src), limit-total)])
		if n == 0 {
			break
		}
		c.dst.skip(n)
		c.src.skip(n)
		total += n
	}
	runtime.KeepAlive(c.owners)
	return total
}

// cursor is a position within the segments of host memory.
type cursor struct {
	segment []byte
	more    [][]byte
}

// newCursor returns a cursor at the first byte of the host memory b, whose memory it shares.
func newCursor(b Buffer) cursor { return cursor{segment: b.host, more: b.more} }

// rest returns the bytes from the cursor to the end of its segment, without advancing. If the
// segment has no more bytes, it first moves the cursor to the next segment that has some. The
// result is empty only at the end of the memory. It shares the memory.
func (c *cursor) rest() []byte {
	for len(c.segment) == 0 && len(c.more) > 0 {
		c.segment, c.more = c.more[0], c.more[1:]
	}
	return c.segment
}

// skip moves the cursor forward by n bytes. At most the remaining bytes of the current segment may
// be skipped.
func (c *cursor) skip(n int) { c.segment = c.segment[n:] }

// take returns the next bytes of the current segment, at most limit, and moves the cursor past
// them. The result shares the memory, and its capacity is its length, so that an append does not
// overwrite later bytes. It is empty only at the end of the memory or if limit is 0.
func (c *cursor) take(limit int) []byte {
	n := min(limit, len(c.rest()))
	p := c.segment[:n:n]
	c.skip(n)
	return p
}

// cpu is the kind of Go memory: one device, no streams.
type cpu struct{}

// NewCPU returns the kind of host memory. It has one device, cpu:0, and no streams, and allocates
// memory on the Go heap. NewStream of the kind creates nothing: for cpu:0 it returns a nil Stream
// and no error. Alloc and Copy accept no stream: host memory that is valid on a stream is copied by
// the kind to which the stream belongs.
func NewCPU() Kind { return cpu{} }

func (cpu) Name() string { return KindCPU }

func (cpu) Viable() error { return nil }

func (cpu) Devices() []Device { return []Device{CPU()} }

func (cpu) Alloc(d Device, size int, stream Stream) (Buffer, error) {
	switch {
	case d != CPU():
		return Buffer{}, fmt.Errorf("device: alloc on %v by kind cpu: %w", d, ErrDevice)
	case stream != nil:
		return Buffer{}, fmt.Errorf("device: alloc on %v for a stream of %v: %w", d, stream.Device(), ErrStream)
	case size < 0:
		return Buffer{}, fmt.Errorf("device: alloc of %d bytes on %v: %w", size, d, ErrSize)
	}
	return Bytes(make([]byte, size)), nil
}

func (cpu) NewStream(d Device) (Stream, error) {
	if d != CPU() {
		return nil, fmt.Errorf("device: stream on %v by kind cpu: %w", d, ErrDevice)
	}
	return nil, nil
}

func (cpu) Copy(dst, src Buffer) error {
	for _, b := range []Buffer{dst, src} {
		if b.Stream() != nil {
			return fmt.Errorf("device: copy by kind cpu of memory valid on a stream of %v: %w", b.Stream().Device(), ErrStream)
		}
	}
	return CopyHost(dst, src)
}
