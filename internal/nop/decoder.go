package nop

import (
	"encoding/binary"
	"fmt"
)

// Decoder reads values from a slice, one piece per call, in the order in which
// they were appended.
//
// The first failure sticks: from then on every method returns zero values and
// reads nothing, so a caller may read a whole message and ask [Decoder.Err]
// once. Loops over a count end by themselves, because a failed count is 0.
//
// Nothing is copied or allocated unless a method says so, and no count is
// believed that the bytes left cannot hold. The zero Decoder reads from an
// empty slice.
type Decoder struct {
	buf []byte
	off int
	err error
}

// NewDecoder returns a Decoder that reads p. The Decoder keeps p, not a copy.
func NewDecoder(p []byte) Decoder { return Decoder{buf: p} }

// Err returns the failure that stuck, nil if there was none. It is an [*Error]
// unless [Decoder.Fail] gave another.
func (d *Decoder) Err() error { return d.err }

// Fail makes err stick, unless another failure did before, and leaves nothing
// to read. Use it for a value that is well-formed but not acceptable.
func (d *Decoder) Fail(err error) {
	if d.err == nil {
		d.err = err
		d.buf = d.buf[:d.off]
	}
}

// Failf makes an [*Error] at the current offset stick, unless another failure
// did before.
func (d *Decoder) Failf(format string, args ...any) { d.failAt(d.off, format, args...) }

func (d *Decoder) failAt(off int, format string, args ...any) {
	d.Fail(&Error{Offset: off, What: fmt.Sprintf(format, args...)})
}

// Finish returns the failure that stuck, or one that says that bytes are left.
func (d *Decoder) Finish() error {
	if n := d.left(); n > 0 {
		d.Failf("%d bytes too many", n)
	}
	return d.err
}

// Offset is the number of bytes read so far.
func (d *Decoder) Offset() int { return d.off }

// left is the number of bytes that may still be read.
func (d *Decoder) left() int { return len(d.buf) - d.off }

// take returns the next n bytes, nil if fewer are left. The result cannot grow
// into the bytes behind it.
func (d *Decoder) take(n int) []byte {
	if n > d.left() {
		d.Failf("want %d bytes, %d left", n, d.left())
		return nil
	}
	p := d.buf[d.off : d.off+n : d.off+n]
	d.off += n
	return p
}

// prefix returns the next byte, ok false if there is none.
func (d *Decoder) prefix() (b byte, ok bool) {
	if d.left() == 0 {
		d.Failf("want a value, nothing left")
		return 0, false
	}
	b = d.buf[d.off]
	d.off++
	return b, true
}

// expect reads the prefix byte want.
func (d *Decoder) expect(want byte, kind string) bool {
	got, ok := d.prefix()
	if ok && got != want {
		d.failAt(d.off-1, "want %s (%02x), got %02x", kind, want, got)
		ok = false
	}
	return ok
}

// fixed reads a little-endian number of 1, 2, 4 or 8 bytes.
func (d *Decoder) fixed(width int) uint64 {
	p := d.take(width)
	switch len(p) {
	case 1:
		return uint64(p[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(p))
	case 4:
		return uint64(binary.LittleEndian.Uint32(p))
	case 8:
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}
