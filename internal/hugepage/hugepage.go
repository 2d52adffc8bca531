// Package hugepage makes the system use huge pages for large memory. Filling new small pages costs
// several times as much as copying into existing ones, and another process reads huge pages at
// twice the rate (process_vm_readv).
package hugepage

import "unsafe"

// Size is the size and alignment of a huge page on amd64, and on arm64 with base pages of 4 KiB.
const Size = 2 << 20

// aligned is the size from which memory begins at a huge page. The unused bytes before and after
// it, one huge page in all, are at most an eighth.
const aligned = 8 * Size

// Make allocates a slice of n bytes, all zero, in the Go heap. If the slice has at least 4 MiB, the
// size of two huge pages, it contains a whole huge page wherever it begins; Make then asks the
// system to use huge pages for it. From 16 MiB on the slice begins at a huge page.
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

// slack returns the number of bytes that Make allocates in addition to n, so that the slice can
// begin at a huge page: 0 if the slice is too small for that.
func slack(n int) int {
	if n >= aligned {
		return Size
	}
	return 0
}

// toPage returns the number of bytes from the start of p to the next address at which a huge page
// can begin, 0 if p starts there. The result may exceed len(p).
func toPage(p []byte) int {
	return int(-uintptr(unsafe.Pointer(unsafe.SliceData(p))) & (Size - 1))
}

// Within returns the part of p that can consist of huge pages, without a copy. It is nil or empty
// if there is none.
func Within(p []byte) []byte {
	before := toPage(p)
	if before >= len(p) {
		return nil
	}
	p = p[before:]
	return p[:len(p)&^(Size-1)]
}
