// Package gorgonia implements driver.Driver on gorgonia.org/cu, for programs that use cu already:
// their contexts, streams, events and memory can be passed to this library, and those of this
// library to cu. Programs without cu use driver.Open, which needs no cgo and no headers.
//
//	d, err := gorgonia.New()
//	...
//	err = d.Push(gorgonia.Context(ctx)) // ctx, stream, event, dst and src are the program's own
//	...
//	defer d.Pop()
//	err = d.Copy(gorgonia.Ptr(dst), gorgonia.Ptr(src), n, gorgonia.Stream(stream))
//	err = d.Record(gorgonia.Event(event), gorgonia.Stream(stream))
//
// # Building
//
// The package is a module of its own, since cu brings many modules into the graph of a program. It
// needs cgo, cuda.h, and at link time libcuda.so, of the driver or from the folder stubs of CUDA.
// Both are found in /usr/local/cuda; for other places set CGO_CFLAGS=-I... and CGO_LDFLAGS=-L....
// A program linked with cu does not start on a machine without libcuda.so.1. The driver must be of
// CUDA 11.4 or later.
//
// It is compiled and tested with the cuda.h of CUDA 11.8, and compiled with that of 12.4. For CUDA
// 13, with which cu alone cannot be compiled, the file compat13/cuda.h adapts the header; it has
// not been compiled with that version yet.
//
// # Defects of cu
//
// Version v0.9.6 of cu has defects that matter here. All but the first stay in programs that call
// the functions of cu themselves.
//
//   - If the driver finds no device, a program with cu prints "Error in initialization" and exits
//     with status 1 before main begins. With this package on Linux it runs, and New returns a
//     *driver.NotViableError. For this the linker wraps cuInit in the whole program.
//   - DevicePtr.PtrAttribute and DevicePtr.MemoryType always fail, with "InvalidValue": they pass
//     no memory for the result. PointerAttribute works.
//   - Function.Launch reads 8 bytes at each parameter, which is beyond the end of a smaller
//     variable, and truncates larger parameters. Launch takes parameters of any size.
//   - Device.UUID returns the same UUID for all MIG instances of a device. DeviceUUID distinguishes
//     them.
//   - Event.Query and Stream.Query allocate an error each time that work is not done, and
//     PopCurrentCtx allocates each time. EventDone, StreamDone and Pop do not.
//   - Version returns -1 for any error. The method Version returns the error.
//   - CUContext.Unlock waits for all work of the device, and leaves the goroutine bound to its
//     thread if that fails. Pop does neither.
//   - An Event does not export its handle, and there are no functions for handles of other
//     processes and for allocating or registering host memory. This package has them.
package gorgonia
