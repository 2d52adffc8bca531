package gorgonia

/*
#include <cuda.h>
#cgo noescape cuPointerGetAttribute
#cgo nocallback cuPointerGetAttribute
*/
import "C"

import (
	"unsafe"

	"gorgonia.org/cu"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

// PointerAttribute calls C, since cu.DevicePtr.PtrAttribute passes no memory for the result and
// hence always fails.
func (cuda) PointerAttribute(a driver.PointerAttribute, p driver.Ptr) (int64, error) {
	var v C.longlong // of which most attributes set the lower half only
	r := C.cuPointerGetAttribute(unsafe.Pointer(&v), C.CUpointer_attribute(a), C.CUdeviceptr(p))
	if a != driver.PointerBufferID {
		v = C.longlong(C.int(v))
	}
	return int64(v), checkResult("cuPointerGetAttribute", r)
}

func (cuda) Alloc(size int) (driver.Ptr, error) {
	p, err := cu.MemAlloc(int64(size))
	return Ptr(p), check("cuMemAlloc", err)
}

func (cuda) Free(p driver.Ptr) error { return check("cuMemFree", cu.MemFree(DevicePtr(p))) }

func (cuda) MemInfo() (free, total uint64, err error) {
	f, t, err := cu.MemInfo()
	return uint64(f), uint64(t), check("cuMemGetInfo", err)
}

func (cuda) AddressRange(p driver.Ptr) (base driver.Ptr, size int, err error) {
	n, b, err := DevicePtr(p).AddressRange()
	return Ptr(b), int(n), check("cuMemGetAddressRange", err)
}

// AllocHost calls C, since cu has no function for it.
func (cuda) AllocHost(size int) ([]byte, error) {
	var p unsafe.Pointer
	r := C.cuMemHostAlloc(&p, C.size_t(size), C.CU_MEMHOSTALLOC_PORTABLE)
	if err := checkResult("cuMemHostAlloc", r); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), size), nil
}

func (cuda) FreeHost(p []byte) error {
	return check("cuMemFreeHost", cu.MemFreeHost(unsafe.Pointer(unsafe.SliceData(p))))
}

// RegisterHost calls C, since cu has no function for it.
func (cuda) RegisterHost(p []byte) error {
	r := C.cuMemHostRegister(unsafe.Pointer(unsafe.SliceData(p)), C.size_t(len(p)), C.CU_MEMHOSTREGISTER_PORTABLE)
	return checkResult("cuMemHostRegister", r)
}

// UnregisterHost calls C, since cu has no function for it.
func (cuda) UnregisterHost(p []byte) error {
	return checkResult("cuMemHostUnregister", C.cuMemHostUnregister(unsafe.Pointer(unsafe.SliceData(p))))
}

func (cuda) Copy(dst, src driver.Ptr, n int, s driver.Stream) error {
	return check("cuMemcpyAsync", cu.MemcpyAsync(DevicePtr(dst), DevicePtr(src), int64(n), CUStream(s)))
}

func (cuda) Fill(dst driver.Ptr, v uint32, words int, s driver.Stream) error {
	return check("cuMemsetD32Async", cu.MemsetD32Async(DevicePtr(dst), uint(v), int64(words), CUStream(s)))
}
