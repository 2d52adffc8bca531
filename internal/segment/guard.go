package segment

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"unsafe"
)

// Guard runs f and returns its error. shared is the memory that f accesses and that the peer can
// truncate. An access to a truncated page ends f, and the error matches [ErrFault].
//
// f must access shared on the calling goroutine, and release its locks with defer. Panics pass
// through, and faults in other memory become panics, because the peer has not caused those.
//
// A system call with such memory does not fault; it fails with EFAULT.
func Guard(f func() error, shared ...[]byte) (err error) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if r := recover(); r != nil {
			err = faultOf(r, shared)
		}
	}()
	return f()
}

// faultOf returns an error that matches ErrFault if recovered, the value of a panic, is a fault at
// an address in one of the shared slices. Otherwise it panics with recovered.
func faultOf(recovered any, shared [][]byte) error {
	fault, ok := recovered.(interface {
		runtime.Error
		Addr() uintptr
	})
	if ok {
		for _, memory := range shared {
			start := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
			if fault.Addr() >= start && fault.Addr()-start < uintptr(len(memory)) {
				return fmt.Errorf("%w (at %#x)", ErrFault, fault.Addr())
			}
		}
	}
	panic(recovered)
}
