package mpt

import "math/bits"

// bound is the offset at which lane i of the compatible dialect begins: size*i/lanes,
// rounded down, whatever the size.
func bound(size, i, lanes int) int {
	hi, lo := bits.Mul64(uint64(size), uint64(i))
	at, _ := bits.Div64(hi, lo, uint64(lanes))
	return int(at)
}
