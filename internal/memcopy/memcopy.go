// Package memcopy copies large pieces of host memory with less traffic between caches
// and memory than copy has. A processor that is about to write a line reads it first,
// unless it knows that all of it will be written: for a copy that is a third of what
// moves, and where another processor has the line it has to be fetched from there.
//
// Both functions copy as copy does, except that the memories must not overlap. They
// are copy where the processor has nothing better, for small pieces, and where the race
// detector watches, which does not see into assembly.
package memcopy

// least is how many bytes are worth more than a call of copy.
const least = 4 << 10

// NonTemporal copies past the caches: for what is too large for them, or is not looked
// at soon. It returns the number of bytes, the shorter of both lengths.
func NonTemporal(dst, src []byte) int {
	n := min(len(dst), len(src))
	if n < least || !hasNonTemporal {
		return copy(dst, src)
	}
	head := misaligned(dst)
	whole := (n - head) &^ (block - 1)
	copy(dst[:head], src)
	nonTemporal(&dst[head], &src[head], whole)
	copy(dst[head+whole:n], src[head+whole:n])
	return n
}

// FastString copies by the instruction for strings, which writes lines without reading
// them, into the caches: for what another processor reads at once. It returns the
// number of bytes, the shorter of both lengths.
func FastString(dst, src []byte) int {
	n := min(len(dst), len(src))
	if n < least || !hasFastString {
		return copy(dst, src)
	}
	fastString(&dst[0], &src[0], n)
	return n
}
