//go:build !nocuda && linux

package driver

import "encoding/binary"

// callWithHandle calls fn(out, *h, flags). In the calling convention of the system, a struct of 64
// bytes that is passed by value lies on the stack, after six registers for integers, of which the
// other two arguments take the first ones.
//
//go:uintptrescapes
func callWithHandle(name string, fn, out uintptr, h *IPCHandle, flags uintptr) error {
	const registers = 6
	args := [registers + len(h)/8]uintptr{out, flags}
	for i := range len(h) / 8 {
		args[registers+i] = uintptr(binary.NativeEndian.Uint64(h[8*i:]))
	}
	return call(name, fn, args[:]...)
}
