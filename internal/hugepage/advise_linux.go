package hugepage

import "syscall"

// Advise asks the kernel to use huge pages for those parts of p that have no memory yet. p must
// begin at the start of a page. Advise reports no error: a kernel without huge pages refuses, and
// the memory works all the same.
func Advise(p []byte) {
	if len(p) > 0 {
		_ = syscall.Madvise(p, syscall.MADV_HUGEPAGE)
	}
}
