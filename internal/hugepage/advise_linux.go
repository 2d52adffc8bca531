package hugepage

import "syscall"

// Advise asks for huge pages where p, which begins at a page, has none yet. Kernels
// without them refuse; the memory works all the same.
func Advise(p []byte) {
	if len(p) > 0 {
		_ = syscall.Madvise(p, syscall.MADV_HUGEPAGE)
	}
}
