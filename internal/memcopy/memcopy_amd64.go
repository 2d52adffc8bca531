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

// block is what nonTemporal copies at a time.
const block = 128

// misaligned is how many bytes are before the first line that begins in p.
func misaligned(p []byte) int { return int(-uintptr(unsafe.Pointer(&p[0])) % 64) }

// nonTemporal copies n bytes, a multiple of block, to a place that is aligned to 64.
//
//go:noescape
func nonTemporal(dst, src *byte, n int)

// fastString copies n bytes.
//
//go:noescape
func fastString(dst, src *byte, n int)
