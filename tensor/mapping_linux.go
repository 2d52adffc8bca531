package tensor

import (
	"syscall"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/internal/hugepage"
)

// mapMemory maps at least size bytes of private anonymous memory. data is the
// part of whole to use: it starts at a huge page where it can fill one.
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

func mapAnonymous(size int) ([]byte, error) {
	return syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
}

// discardMemory gives the pages back to the system. The addresses stay valid
// and read as zero.
func discardMemory(data []byte) { _ = syscall.Madvise(data, syscall.MADV_DONTNEED) }

// unmapMemory takes what mapMemory returned as whole.
func unmapMemory(whole []byte) { _ = syscall.Munmap(whole) }
