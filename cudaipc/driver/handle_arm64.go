//go:build !nocuda && linux

package driver

import "unsafe"

// callWithHandle calls fn(out, *h, flags). In the calling convention of the system, a struct of
// more than 16 bytes that is passed by value is replaced by a pointer to a copy of it.
//
//go:uintptrescapes
func callWithHandle(name string, fn, out uintptr, h *IPCHandle, flags uintptr) error {
	passed := *h
	return call(name, fn, out, uintptr(unsafe.Pointer(&passed)), flags)
}
