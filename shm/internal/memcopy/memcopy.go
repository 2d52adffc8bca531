// Package memcopy copies large pieces of host memory with less traffic between caches and memory
// than copy. A processor that is about to write to a cache line reads the line first, unless it
// knows that all of it will be overwritten. For a copy that is a third of the traffic, and a line
// that is in the cache of another processor must be fetched from there.
//
// Both functions behave as copy does, except that the memories must not overlap. They call copy if
// the processor has no better instruction, for small pieces, and in builds with the race detector,
// which does not see assembly.
package memcopy

// minSize is the size in bytes from which the functions are faster than copy.
const minSize = 4 << 10

// NonTemporal copies src to dst with stores that bypass the caches, and returns the number of bytes
// copied, the smaller of both lengths. dst and src must not overlap. It is for pieces that do not
// fit into the caches, or are not accessed soon. It is the built-in copy below 4 KiB and where the
// processor or the build lacks such stores.
func NonTemporal(dst, src []byte) int {
	n := min(len(dst), len(src))
	if n < minSize || !hasNonTemporal {
		return copy(dst, src)
	}
	head := misaligned(dst)
	whole := (n - head) &^ (block - 1)
	copy(dst[:head], src)
	nonTemporal(&dst[head], &src[head], whole)
	copy(dst[head+whole:n], src[head+whole:n])
	return n
}

// FastString copies src to dst through the caches with the processor's string instruction, which
// does not read the lines of dst first. It returns the number of bytes copied, the smaller of both
// lengths. dst and src must not overlap. It is for pieces that another processor reads at once. It
// is the built-in copy below 4 KiB and where that instruction is not fast or the build lacks it.
func FastString(dst, src []byte) int {
	n := min(len(dst), len(src))
	if n < minSize || !hasFastString {
		return copy(dst, src)
	}
	fastString(&dst[0], &src[0], n)
	return n
}
