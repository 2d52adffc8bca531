package segment

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"unsafe"
)

// Guard runs f, which touches shared memory that a peer can shrink, and returns its
// error. Where the pages are gone the touch faults; f ends there, and the error
// matches [ErrFault].
//
// f does its work on the goroutine that calls it, and holds no lock that it releases
// without defer. Panics pass through, and so do, as panics, faults in other memory:
// those are not the peer's doing.
//
// A system call that is given such memory does not fault. It fails with EFAULT.
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

// faultOf makes an error of a fault in such memory. All else that was recovered goes on.
func faultOf(recovered any, shared [][]byte) error {
	fault, ok := recovered.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok || !slices.ContainsFunc(shared, func(m []byte) bool { return within(m, fault.Addr()) }) {
		panic(recovered)
	}
	return fmt.Errorf("%w (at %#x)", ErrFault, fault.Addr())
}

func within(memory []byte, address uintptr) bool {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	return address >= start && address-start < uintptr(len(memory))
}
