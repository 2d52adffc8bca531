package hugepage

import "syscall"

// Advise asks the kernel to use huge pages for p, which must begin at a page, where p has no pages
// yet. It returns nothing: kernels without huge pages refuse, and the memory works all the same.
func Advise(p []byte) {
	if len(p) > 0 {
		_ = syscall.Madvise(p, syscall.MADV_HUGEPAGE)
	}
}
