package device

import "fmt"

// Buffer is memory on a device and the stream on which it is valid: whoever
// reads or writes it must order that access on the stream. Host memory without
// a stream is valid at once.
//
// A Buffer is a small value; copying it does not copy memory. Host memory may
// consist of several segments, used one after the other. The zero Buffer is
// empty host memory on no device.
type Buffer struct {
	device Device
	stream Stream
	host   []byte   // first host segment that is not empty
	more   [][]byte // host segments behind it
	mem    Memory   // nil for host memory
	off    int      // start within mem
	length int
	owner  any // kept reachable, see WithOwner
}

// Host wraps host memory on cpu:0. The segments are used in order; the Buffer
// keeps them and the slice that lists them, not copies.
func Host(segments ...[]byte) Buffer {
	b := Buffer{device: CPU()}
	for i, s := range segments {
		if b.length == 0 {
			b.host, b.more = s, segments[i+1:]
		}
		b.length += len(s)
	}
	return b
}

// Bytes wraps one piece of host memory on cpu:0. Unlike Host it never
// allocates.
func Bytes(p []byte) Buffer {
	return Buffer{device: CPU(), host: p, length: len(p)}
}

// On wraps memory that the host cannot address, on device d and valid on
// stream (nil: valid at once).
func On(d Device, mem Memory, stream Stream) Buffer {
	return Buffer{device: d, mem: mem, stream: stream, length: mem.Len()}
}

// Device is where the memory lives.
func (b Buffer) Device() Device { return b.device }

// Len is the total size in bytes.
func (b Buffer) Len() int { return b.length }

// Stream is the stream on which the memory is valid, nil if it is valid at
// once.
func (b Buffer) Stream() Stream { return b.stream }

// WithStream returns the same memory, valid on s. It does not order s behind
// the old stream.
func (b Buffer) WithStream(s Stream) Buffer {
	b.stream = s
	return b
}

// WithOwner returns the same memory and keeps owner reachable for as long as the
// result, or what Slice and WithStream make of it, is. It is for memory that
// the garbage collector does not see and that owner gives back when it becomes
// unreachable. Segments taken out of a Buffer do not keep its owner.
func (b Buffer) WithOwner(owner any) Buffer {
	b.owner = owner
	return b
}

// IsHost reports whether the host can address the memory.
func (b Buffer) IsHost() bool { return b.mem == nil }

// AppendSegments appends the host segments to dst, leaving out empty ones. It
// appends nothing for memory that the host cannot address.
func (b Buffer) AppendSegments(dst [][]byte) [][]byte {
	if len(b.host) > 0 {
		dst = append(dst, b.host)
	}
	for _, s := range b.more {
		if len(s) > 0 {
			dst = append(dst, s)
		}
	}
	return dst
}

// Contiguous returns the host memory as one slice without copying. ok is false
// if the memory is not host memory or lies in several non-empty segments.
func (b Buffer) Contiguous() (p []byte, ok bool) {
	if b.mem != nil || len(b.host) != b.length {
		return nil, false
	}
	return b.host, true
}

// Memory returns device memory and the offset of the buffer within it; nil for
// host memory.
func (b Buffer) Memory() (mem Memory, offset int) { return b.mem, b.off }

// Slice returns the n bytes of b that start at off. It panics if they do not
// lie within b, as slicing a []byte does.
func (b Buffer) Slice(off, n int) Buffer {
	if off < 0 || n < 0 || off > b.length-n {
		panic(fmt.Sprintf("device: slice [%d:+%d] of a buffer of %d bytes", off, n, b.length))
	}
	if b.mem != nil {
		b.off += off
		b.length = n
		return b
	}
	out := Buffer{device: b.device, stream: b.stream, length: n, owner: b.owner}
	out.host, out.more = b.cut(off, n)
	return out
}

// cut returns the segments of n bytes at off. It allocates only where they are
// several.
func (b Buffer) cut(off, n int) (first []byte, more [][]byte) {
	c := cursorOf(b)
	for off > 0 && off >= len(c.rest()) {
		off -= len(c.segment)
		c.skip(len(c.segment))
	}
	c.skip(off)
	first = c.take(n)
	for n -= len(first); n > 0; n -= len(more[len(more)-1]) {
		more = append(more, c.take(n))
	}
	return first, more
}
