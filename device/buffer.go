package device

import "fmt"

// Buffer is memory on a device and the stream on which it is valid: every read or write of the
// memory must be ordered on the stream. Host memory without a stream is valid at once.
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

// Host returns a Buffer of the host memory in segments, on cpu:0 and valid at once. Its bytes are
// those of the segments, one after the other; empty segments are permitted. The Buffer shares the
// memory of the segments and retains the slice that lists them, which the caller must not change.
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

// Bytes returns a Buffer of the host memory p, on cpu:0 and valid at once. The Buffer shares p's
// memory. Bytes does not allocate.
func Bytes(p []byte) Buffer {
	return Buffer{device: CPU(), host: p, length: len(p)}
}

// On returns a Buffer of all of mem, memory on device d that the host cannot address. It is valid
// on stream, or at once if stream is nil. mem must not be nil; the Buffer retains it and stream.
func On(d Device, mem Memory, stream Stream) Buffer {
	return Buffer{device: d, mem: mem, stream: stream, length: mem.Len()}
}

// Device returns the device on which the memory is. For the zero Buffer it returns the zero Device.
func (b Buffer) Device() Device { return b.device }

// Len returns the size of the memory in bytes, of all segments together.
func (b Buffer) Len() int { return b.length }

// Stream returns the stream on which the memory is valid, or nil if the memory is valid at once.
func (b Buffer) Stream() Stream { return b.stream }

// WithStream returns a Buffer of the same memory that is valid on s, or at once if s is nil. It
// does not make s wait for the previous stream; the caller must have ordered the two. b does not
// change.
func (b Buffer) WithStream(s Stream) Buffer {
	b.stream = s
	return b
}

// WithOwner returns a Buffer of the same memory that keeps owner reachable as long as this Buffer,
// or one derived from it with Slice or WithStream, is reachable. The new owner replaces that of b.
// It is for memory outside the garbage-collected heap that owner frees when owner becomes
// unreachable. The slices that AppendSegments and Contiguous return do not keep the owner
// reachable.
func (b Buffer) WithOwner(owner any) Buffer {
	b.owner = owner
	return b
}

// IsHost reports whether the host can address the memory: true for Buffers made by Host and Bytes,
// and for the zero Buffer, false for those made by On.
func (b Buffer) IsHost() bool { return b.mem == nil }

// AppendSegments appends the non-empty segments of host memory to dst, in order, and returns the
// extended slice. The appended slices share the memory of b. If the host cannot address the memory,
// AppendSegments returns dst unchanged.
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

// Contiguous returns the host memory as one slice, which shares the memory of b. If b is empty host
// memory, p is empty and ok is true. If the memory is not host memory, or has several non-empty
// segments, p is nil and ok is false.
func (b Buffer) Contiguous() (p []byte, ok bool) {
	if b.mem != nil || len(b.host) != b.length {
		return nil, false
	}
	return b.host, true
}

// Memory returns the device memory of which b is a part, and the offset in bytes at which b begins
// in it. For host memory it returns nil and 0.
func (b Buffer) Memory() (mem Memory, offset int) { return b.mem, b.off }

// Slice returns a Buffer of the n bytes of b that begin at offset off. The result shares the memory
// of b, and has the same device, stream and owner. Slice panics if off or n is negative or off+n
// exceeds b.Len().
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

// cut returns the segments that hold the n bytes at offset off of host memory: the first segment as
// first, and all later ones as more, which is nil if there are none. They share the memory of b. b
// must have these bytes. cut allocates only if there are later segments.
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
