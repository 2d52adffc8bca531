package segment

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Guard runs f, which touches memory that a peer can shrink, and returns its
// error. Where the pages are gone the touch faults; f ends there, and the error
// matches [ErrFault].
//
// f does its work on the goroutine that calls it, holds no lock that it releases
// without defer, and touches no other memory that can fault: that would be
// reported as the peer's doing. Other panics pass through.
//
// A system call that is given such memory does not fault. It fails with EFAULT.
func Guard(f func() error) (err error) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if r := recover(); r != nil {
			err = faultOf(r)
		}
	}()
	return f()
}

// faultOf makes an error of a fault. All else that was recovered goes on.
func faultOf(recovered any) error {
	fault, ok := recovered.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		panic(recovered)
	}
	return fmt.Errorf("%w (at %#x)", ErrFault, fault.Addr())
}
