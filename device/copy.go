package device

import (
	"fmt"
	"runtime"
)

// CopyHost copies src into dst, both host memory of the same length; their
// segments may be cut differently. It ignores streams: the caller has ordered
// the access. The error is a [*LengthError] or [ErrMemory].
func CopyHost(dst, src Buffer) error {
	c, err := NewHostCopy(dst, src)
	if err != nil {
		return err
	}
	c.Step(src.Len())
	return nil
}

// HostCopy is a copy from host memory to host memory that is made piece by
// piece, so that it can be given up between two of them. It allocates nothing.
//
// It keeps the owners of both buffers reachable until its last Step.
type HostCopy struct {
	dst, src cursor
	owners   [2]any
}

// NewHostCopy prepares a copy under the conditions of [CopyHost]; nothing has
// been copied when it returns.
func NewHostCopy(dst, src Buffer) (HostCopy, error) {
	if !dst.IsHost() || !src.IsHost() {
		return HostCopy{}, fmt.Errorf("device: host copy from %v to %v: %w", src.Device(), dst.Device(), ErrMemory)
	}
	if dst.Len() != src.Len() {
		return HostCopy{}, &LengthError{Dst: dst.Len(), Src: src.Len()}
	}
	return HostCopy{dst: cursorOf(dst), src: cursorOf(src), owners: [2]any{dst.owner, src.owner}}, nil
}

// Step copies the next bytes, at most limit, and returns their number: less
// than limit only at the end, and 0 behind it.
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

// cursor is a position within host segments.
type cursor struct {
	segment []byte
	more    [][]byte
}

func cursorOf(b Buffer) cursor { return cursor{segment: b.host, more: b.more} }

// rest returns what is left of the current segment, which is empty only at the
// end.
func (c *cursor) rest() []byte {
	for len(c.segment) == 0 && len(c.more) > 0 {
		c.segment, c.more = c.more[0], c.more[1:]
	}
	return c.segment
}

func (c *cursor) skip(n int) { c.segment = c.segment[n:] }

// take returns the next bytes of one segment, at most limit, and moves behind
// them. The capacity is cut too, so that appending cannot touch the rest.
func (c *cursor) take(limit int) []byte {
	n := min(limit, len(c.rest()))
	p := c.segment[:n:n]
	c.skip(n)
	return p
}
