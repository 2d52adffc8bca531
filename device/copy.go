package device

import (
	"fmt"
	"runtime"
)

// CopyHost copies src to dst, both host memory of the same length; their segments may differ. It
// ignores streams: the caller must order the access. The error is a [*LengthError] or matches
// [ErrMemory]; then nothing has been copied.
func CopyHost(dst, src Buffer) error {
	c, err := NewHostCopy(dst, src)
	if err != nil {
		return err
	}
	c.Step(src.Len())
	return nil
}

// HostCopy is a copy between host buffers that is made in steps, so that it can be stopped between two
// of them. Its steps allocate nothing.
//
// It keeps the owners of both buffers reachable until its last Step.
type HostCopy struct {
	dst, src cursor
	owners   [2]any
}

// NewHostCopy prepares a copy of src to dst and copies nothing yet. The conditions and errors are
// those of [CopyHost].
func NewHostCopy(dst, src Buffer) (HostCopy, error) {
	if !dst.IsHost() || !src.IsHost() {
		return HostCopy{}, fmt.Errorf("device: host copy from %v to %v: %w", src.Device(), dst.Device(), ErrMemory)
	}
	if dst.Len() != src.Len() {
		return HostCopy{}, &LengthError{Dst: dst.Len(), Src: src.Len()}
	}
	return HostCopy{dst: newCursor(dst), src: newCursor(src), owners: [2]any{dst.owner, src.owner}}, nil
}

// Step copies the next bytes, at most limit, and returns their number. It is less than limit only at
// the end of the copy, and 0 after the end.
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

// newCursor returns a cursor at the beginning of b.
func newCursor(b Buffer) cursor { return cursor{segment: b.host, more: b.more} }

// rest returns the remaining bytes of the current segment, which is empty only at the end.
func (c *cursor) rest() []byte {
	for len(c.segment) == 0 && len(c.more) > 0 {
		c.segment, c.more = c.more[0], c.more[1:]
	}
	return c.segment
}

// skip moves the cursor forward by n bytes, which must be within its segment.
func (c *cursor) skip(n int) { c.segment = c.segment[n:] }

// take returns the next bytes of the current segment, at most limit, and advances past them. The
// capacity is limited too, so that an append does not overwrite later bytes.
func (c *cursor) take(limit int) []byte {
	n := min(limit, len(c.rest()))
	p := c.segment[:n:n]
	c.skip(n)
	return p
}

// cpu is the kind of Go memory: one device, no streams.
type cpu struct{}

// NewCPU returns the kind of host memory: the one device cpu:0, memory from the Go heap, no streams.
// Alloc and Copy reject a stream with [ErrStream]: host memory that is valid on a stream is copied by
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
