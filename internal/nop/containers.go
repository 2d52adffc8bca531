package nop

// Bytes reads a string and returns it as a slice of the Decoder's input, valid
// as long as that is.
func (d *Decoder) Bytes() []byte {
	if !d.expect(prefixString, "a string") {
		return nil
	}
	return d.take(d.count(1))
}

// Array reads the head of an array whose elements are not integers and returns
// their number. minSize is the least number of bytes that an element can take,
// at least 1; a count that cannot fit into what is left fails, so that a
// caller may allocate as many elements.
func (d *Decoder) Array(minSize int) int {
	if !d.expect(prefixArray, "an array") {
		return 0
	}
	return d.count(minSize)
}

// Map reads the head of a map and returns the number of its entries. minSize
// is the least number of bytes that a key and its value can take together. The
// encoding allows duplicate keys and any order.
func (d *Decoder) Map(minSize int) int {
	if !d.expect(prefixMap, "a map") {
		return 0
	}
	return d.count(minSize)
}

// Struct reads the head of a structure, which must have that many members.
func (d *Decoder) Struct(members int) {
	d.exactly(prefixStruct, "a structure", members)
}

// Pair reads the head of a pair.
func (d *Decoder) Pair() { d.exactly(prefixArray, "a pair", 2) }

// Variant reads the head of a variant and returns the index of the alternative
// that follows; -1 is the empty variant, whose value is an empty optional.
func (d *Decoder) Variant() int32 {
	if !d.expect(prefixVariant, "a variant") {
		return 0
	}
	return d.Int32()
}

// Empty reads an empty optional if one comes next and reports whether it did.
// If not, the value of the optional comes next.
func (d *Decoder) Empty() bool {
	if d.left() == 0 || d.buf[d.off] != prefixEmpty {
		return false
	}
	d.off++
	return true
}

// exactly reads the head of something with a known number of parts.
func (d *Decoder) exactly(prefix byte, kind string, parts int) {
	start := d.off
	if !d.expect(prefix, kind) {
		return
	}
	if n := d.Uint64(); n != uint64(parts) {
		d.failAt(start, "want %s of %d, got %d", kind, parts, n)
	}
}

// count reads a number of parts and checks that the bytes left can hold as
// many of minSize bytes.
func (d *Decoder) count(minSize int) int {
	start := d.off
	n := d.Uint64()
	left := uint64(d.left())
	if n > left || n*uint64(minSize) > left {
		d.failAt(start, "count of %d parts, the bytes left hold at most %d", n, left/uint64(minSize))
		return 0
	}
	return int(n)
}
