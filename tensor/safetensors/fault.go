package safetensors

import (
	"runtime"
	"runtime/debug"
	"unsafe"
)

// copyMapped copies from mapped memory. Where the file behind the mapping has
// lost the page, the processor faults; that becomes ErrShrunk.
func copyMapped(dst, mapped []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = faultIn(mapped, r)
		}
	}()
	copy(dst, mapped)
	return nil
}

// faultIn judges what was recovered; a panic that is no fault within the
// mapping goes on.
func faultIn(mapped []byte, recovered any) error {
	fault, ok := recovered.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		panic(recovered)
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(mapped)))
	if fault.Addr() < start || fault.Addr() >= start+uintptr(len(mapped)) {
		panic(recovered)
	}
	return ErrShrunk
}
