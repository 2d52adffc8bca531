// Package hugepage has the system use huge pages for big memory. Filling fresh small
// pages costs several times what copying into them costs, and another process reads
// huge ones at twice the rate (process_vm_readv).
package hugepage

import "unsafe"

// Size is the size and alignment of a huge page on amd64, and on arm64 with small
// pages of 4 KiB.
const Size = 2 << 20

// aligned is the size from which on memory begins at a huge page. What is left free
// before and behind it, a huge page in all, is an eighth of it at most.
const aligned = 8 * Size

// Make makes a slice of the Go heap, of n bytes. Where those are enough to have a huge
// page in them for sure, the system is asked to use such.
func Make(n int) []byte {
	p := make([]byte, n+slack(n))[:n]
	if n >= aligned {
		start := toPage(p)
		p = p[start : start+n : start+n]
	}
	if n >= 2*Size {
		Advise(Within(p))
	}
	return p
}

// slack is what is made beyond n bytes.
func slack(n int) int {
	if n >= aligned {
		return Size
	}
	return 0
}

// toPage is how many bytes lie between the start of p and that of a huge page.
func toPage(p []byte) int {
	return int(-uintptr(unsafe.Pointer(unsafe.SliceData(p))) & (Size - 1))
}

// Within is the part of p that can be made of huge pages, empty if there is none.
func Within(p []byte) []byte {
	before := toPage(p)
	if before >= len(p) {
		return nil
	}
	p = p[before:]
	return p[:len(p)&^(Size-1)]
}
