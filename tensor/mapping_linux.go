package tensor

import (
	"syscall"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/internal/hugepage"
)

// mapMemory maps private anonymous memory and returns all of it as whole, for unmapMemory, and the size
// bytes of it that the caller may use as data. If size is at least that of a huge page, data starts at
// a multiple of that. The error is that of the system.
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

// mapAnonymous maps size bytes of private anonymous memory.
func mapAnonymous(size int) ([]byte, error) {
	return syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
}

// discardMemory returns the pages of data to the system. The addresses stay mapped and read as zero.
func discardMemory(data []byte) { _ = syscall.Madvise(data, syscall.MADV_DONTNEED) }

// unmapMemory unmaps whole, which mapMemory returned; nothing may refer to that memory any more.
func unmapMemory(whole []byte) { _ = syscall.Munmap(whole) }
