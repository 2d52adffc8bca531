// Package hugepage has the system use huge pages for big memory. Filling fresh small
// pages costs several times what copying into them costs, and another process reads
// huge ones at twice the rate (process_vm_readv).
package hugepage

import "unsafe"

// Size is the size and alignment of a huge page on amd64, and on arm64 with small
// pages of 4 KiB.
const Size = 2 << 20

// Make makes a slice of the Go heap, of n bytes. Where those are enough to have a huge
// page in them for sure, the system is asked to use such.
func Make(n int) []byte {
	p := make([]byte, n)
	if n >= 2*Size {
		Advise(Within(p))
	}
	return p
}

// Within is the part of p that can be made of huge pages, empty if there is none.
func Within(p []byte) []byte {
	before := int(-uintptr(unsafe.Pointer(unsafe.SliceData(p))) & (Size - 1))
	if before >= len(p) {
		return nil
	}
	p = p[before:]
	return p[:len(p)&^(Size-1)]
}
