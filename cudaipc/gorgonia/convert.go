package gorgonia

import (
	"unsafe"

	"gorgonia.org/cu"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

// The types of cu are structs with one unexported field, which is the handle of the driver. Only
// Stream has a method that returns it. These declarations do not compile if that changes.
var (
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.CUContext{})]byte{}
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.Stream{})]byte{}
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.Event{})]byte{}
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.Module{})]byte{}
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.Function{})]byte{}
)

// handle returns h, which holds one handle of the driver, as another type that holds one.
func handle[To, From any](h From) To { return *(*To)(unsafe.Pointer(&h)) }

// Context returns c as a context of package driver. Both stand for the same context. That of a
// *cu.Ctx is its field CUContext.
func Context(c cu.CUContext) driver.Context { return handle[driver.Context](c) }

// Stream returns s as a stream of package driver. Both stand for the same stream.
func Stream(s cu.Stream) driver.Stream { return handle[driver.Stream](s) }

// Event returns e as an event of package driver. Both stand for the same event.
func Event(e cu.Event) driver.Event { return handle[driver.Event](e) }

// Ptr returns p as an address of package driver.
func Ptr(p cu.DevicePtr) driver.Ptr { return driver.Ptr(p) }

// CUContext returns c as a context of package cu. Both stand for the same context.
func CUContext(c driver.Context) cu.CUContext { return handle[cu.CUContext](c) }

// CUStream returns s as a stream of package cu. Both stand for the same stream.
func CUStream(s driver.Stream) cu.Stream { return handle[cu.Stream](s) }

// CUEvent returns e as an event of package cu. Both stand for the same event.
func CUEvent(e driver.Event) cu.Event { return handle[cu.Event](e) }

// DevicePtr returns p as an address of package cu.
func DevicePtr(p driver.Ptr) cu.DevicePtr { return cu.DevicePtr(p) }
