package tensor

import (
	"syscall"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/internal/hugepage"
)

// mapMemory maps private anonymous memory. It returns as data the size bytes of zeros that the
// caller may use, and as whole the entire mapping, which contains data and which the caller passes
// to unmapMemory. If size is at least that of a huge page, data starts at a multiple of that size.
// The error is that of the system.
func mapMemory(size int) (whole, data []byte, err error) {
	if size < hugepage.Size {
		whole, err = mapAnonymous(size)
		return whole, whole, err
	}
	whole, err = mapAnonymous(size + hugepage.Size)
	if err != nil {
		return nil, nil, err
	}
	start := int(-uintptr(unsafe.Pointer(unsafe.SliceData(whole))) & (hugepage.Size - 1))
	data = whole[start : start+size : start+size]
	hugepage.Advise(data)
	return whole, data, nil
}

// mapAnonymous maps and returns size bytes of zeroed, private memory that belongs to no file. The
// garbage collector does not free it. The error is that of the system.
func mapAnonymous(size int) ([]byte, error) {
	return syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
}

// discardMemory returns the memory pages of data to the system. The addresses stay mapped, and read
// as zero afterwards. An error of the system is ignored.
func discardMemory(data []byte) { _ = syscall.Madvise(data, syscall.MADV_DONTNEED) }

// unmapMemory unmaps whole, which mapMemory has returned. Nothing may refer to that memory any
// more. An error of the system is ignored.
func unmapMemory(whole []byte) { _ = syscall.Munmap(whole) }
