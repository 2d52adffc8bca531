package device

import "fmt"

// Buffer is memory on a device and the stream on which it is valid: every read or write of the memory
// must be ordered on the stream. Host memory without a stream is valid at once.
//
// A Buffer is a small value; copying it does not copy memory. Host memory may consist of several
// segments, used one after the other. The zero Buffer is empty host memory on no device.
type Buffer struct {
	device Device
	stream Stream
	host   []byte   // first non-empty host segment
	more   [][]byte // later host segments
	mem    Memory   // nil for host memory
	off    int      // offset within mem
	length int
	owner  any // kept reachable, see WithOwner
}

// Host returns a Buffer of host memory on cpu:0. The segments are used in order; the Buffer retains
// them and the slice that lists them.
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

// Bytes returns a Buffer of one slice of host memory on cpu:0. Unlike Host it never allocates.
func Bytes(p []byte) Buffer {
	return Buffer{device: CPU(), host: p, length: len(p)}
}

// On returns a Buffer of memory that the host cannot address, on device d and valid on stream. A nil
// stream means that it is valid at once.
func On(d Device, mem Memory, stream Stream) Buffer {
	return Buffer{device: d, mem: mem, stream: stream, length: mem.Len()}
}

// Device returns the device on which the memory is, the zero Device for the zero Buffer.
func (b Buffer) Device() Device { return b.device }

// Len returns the total size in bytes.
func (b Buffer) Len() int { return b.length }

// Stream returns the stream on which the memory is valid, nil if it is valid at once.
func (b Buffer) Stream() Stream { return b.stream }

// WithStream returns the same memory, valid on s. It does not order s after the previous stream.
func (b Buffer) WithStream(s Stream) Buffer {
	b.stream = s
	return b
}

// WithOwner returns the same memory and keeps owner reachable as long as the result is, or a Buffer
// derived from it with Slice or WithStream. It is for memory outside the garbage-collected heap that
// owner frees when it becomes unreachable. Segments returned by AppendSegments do not keep the owner
// reachable.
func (b Buffer) WithOwner(owner any) Buffer {
	b.owner = owner
	return b
}

// IsHost reports whether the host can address the memory. It is true for the zero Buffer.
func (b Buffer) IsHost() bool { return b.mem == nil }

// AppendSegments appends the non-empty host segments to dst, without copying the memory, and returns
// the result. It appends nothing for memory that the host cannot address.
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

// Contiguous returns the host memory as one slice without copying. ok is false if the memory is not
// host memory or has several non-empty segments.
func (b Buffer) Contiguous() (p []byte, ok bool) {
	if b.mem != nil || len(b.host) != b.length {
		return nil, false
	}
	return b.host, true
}

// Memory returns the device memory of which b is a part, and the offset of b within it in bytes. mem
// is nil for host memory.
func (b Buffer) Memory() (mem Memory, offset int) { return b.mem, b.off }

// Slice returns the n bytes of b from offset off on, which are the same memory, valid on the same
// stream and with the same owner. It panics if they are not within b.
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

// cut returns the segments that hold the n bytes at offset off of host memory: the first segment, and
// all later ones as more. The bytes must exist. cut allocates only if there are several segments.
func (b Buffer) cut(off, n int) (first []byte, more [][]byte) {
	c := newCursor(b)
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
