//go:build !race

package memcopy

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

var (
	hasNonTemporal = cpu.X86.HasAVX
	hasFastString  = cpu.X86.HasERMS
)

// block is the number of bytes that nonTemporal copies at a time.
const block = 128

// misaligned returns the number of bytes, 0 to 63, from the start of p to the next address that is
// a multiple of 64, where a cache line begins. p must not be empty.
func misaligned(p []byte) int { return int(-uintptr(unsafe.Pointer(&p[0])) % 64) }

// nonTemporal copies n bytes from src to dst with stores that bypass the caches. n is a positive
// multiple of block, and dst is aligned to 64 bytes. The processor must have AVX (hasNonTemporal).
//
//go:noescape
func nonTemporal(dst, src *byte, n int)

// fastString copies n bytes from src to dst with the string instruction. It is fast if the
// processor has ERMS (hasFastString).
//
//go:noescape
func fastString(dst, src *byte, n int)
