// Package driver is the part of NVIDIA's CUDA driver API that moves tensors: memory, streams,
// events, their handles for other processes, and kernels.
//
// [Open] loads the driver at run time, without cgo and without headers, so that one program runs on
// machines with and without a GPU. Another implementation of [Driver] is in the nested module
// cudaipc/gorgonia.
//
// A method is named after the function of the driver API that it calls, which its comment names;
// that function's documentation holds for it. Methods in the second half of the interface act on
// the current context of the calling thread: call them between [Driver.Push] and [Driver.Pop].
package driver

import "unsafe"

// Handles of the driver. The zero value of each is no object, or for a Stream the default stream.
type (
	Ptr      uintptr // address that a device can use: device memory, or host memory that the driver knows
	Context  uintptr // state of one device in this process
	Stream   uintptr // ordered queue of work on one device
	Event    uintptr // position in a stream
	Module   uintptr // loaded kernels
	Function uintptr // one kernel
)

// IPCHandle names memory or an event to other processes of the machine.
type IPCHandle [64]byte

// UUID identifies a device of any machine. Its bytes are those of the driver.
type UUID [16]byte

// EventFlags are options of an event.
type EventFlags uint32

// Options of events. An event for other processes needs both.
const (
	EventDisableTiming EventFlags = 2
	EventInterprocess  EventFlags = 4
)

// DeviceAttribute is a property of a device, with the driver's number.
type DeviceAttribute int32

// Properties of devices. Those without a range in their comment are 0 or 1.
const (
	AttributeComputeMode       DeviceAttribute = 20 // 0 to 3; 0: several processes may use the device
	AttributeMajor             DeviceAttribute = 75 // compute capability, the number before the dot
	AttributeMinor             DeviceAttribute = 76 // compute capability, the number after the dot
	AttributeIntegrated        DeviceAttribute = 18 // memory is shared with the host
	AttributeUnifiedAddressing DeviceAttribute = 41 // host and devices share one address space

	// AttributeIPCEvents is 1 if events have handles for other processes. Drivers before CUDA 12.0 do not know it:
	// the error matches ResultInvalidValue.
	AttributeIPCEvents DeviceAttribute = 125
)

// PointerAttribute is a property of an address, with the driver's number.
type PointerAttribute int32

// Properties of addresses.
const (
	PointerMemoryType PointerAttribute = 2  // 1: host memory, 2: device memory
	PointerBufferID   PointerAttribute = 7  // differs for each allocation that the process has ever made
	PointerManaged    PointerAttribute = 8  // 1: the driver moves it between host and device
	PointerDevice     PointerAttribute = 9  // index of the device
	PointerLegacyIPC  PointerAttribute = 10 // 1: MemHandle accepts it
)

// Values of PointerMemoryType.
const (
	MemoryTypeHost   = 1
	MemoryTypeDevice = 2
)

// Dim is the size of a grid in blocks, or of a block in threads.
type Dim struct{ X, Y, Z uint32 }

// Driver is the CUDA driver of a process. All methods may be called from any goroutine. An error
// of the driver is a [*CallError].
//
// None of the methods waits for work of a device, except SyncStream, SyncEvent, Free, FreeHost,
// UnregisterHost and CloseMem, and Copy from or to pageable host memory.
type Driver interface {
	// Version returns the version of CUDA that the driver supports, 1000*major + 10*minor
	// (cuDriverGetVersion).
	Version() (int, error)

	// DeviceCount returns the number of devices that the process can use (cuDeviceGetCount).
	// Devices have the indices from 0 to DeviceCount()-1.
	DeviceCount() (int, error)

	// DeviceName returns the name of the model (cuDeviceGetName).
	DeviceName(dev int) (string, error)

	// DeviceUUID returns the device's identity, or that of its MIG instance (cuDeviceGetUuid_v2).
	DeviceUUID(dev int) (UUID, error)

	// DeviceAttribute returns a property of the device (cuDeviceGetAttribute).
	DeviceAttribute(a DeviceAttribute, dev int) (int, error)

	// DeviceCanAccessPeer reports whether work on dev can access memory of peer
	// (cuDeviceCanAccessPeer).
	DeviceCanAccessPeer(dev, peer int) (bool, error)

	// PrimaryContextRetain returns the context that all libraries of the process share on dev, and
	// initialises it if nothing else uses it (cuDevicePrimaryCtxRetain). Each successful call needs
	// one of PrimaryContextRelease.
	PrimaryContextRetain(dev int) (Context, error)

	// PrimaryContextRelease undoes one PrimaryContextRetain (cuDevicePrimaryCtxRelease_v2). With the
	// last one, memory, streams and events of the context are gone.
	PrimaryContextRelease(dev int) error

	// PrimaryContextActive reports whether the context is initialised (cuDevicePrimaryCtxGetState).
	PrimaryContextActive(dev int) (bool, error)

	// PointerAttribute returns a property of an address that the driver knows
	// (cuPointerGetAttribute). It needs no current context. For other addresses the error matches
	// ResultInvalidValue.
	PointerAttribute(a PointerAttribute, p Ptr) (int64, error)

	// Push binds the calling goroutine to its thread and makes c the current context of that thread
	// (cuCtxPushCurrent). If it returns nil, the same goroutine must call Pop. Calls may be nested.
	Push(c Context) error

	// Pop restores the context that was current before Push (cuCtxPopCurrent), and releases the
	// thread.
	Pop()

	// EnablePeerAccess lets kernels of the current context access memory of peer
	// (cuCtxEnablePeerAccess).
	EnablePeerAccess(peer Context) error

	// Alloc allocates device memory, with undefined contents (cuMemAlloc).
	Alloc(size int) (Ptr, error)

	// Free frees memory of Alloc (cuMemFree). It waits until the device has no work left.
	Free(p Ptr) error

	// MemInfo returns the bytes of the device's memory (cuMemGetInfo).
	MemInfo() (free, total uint64, err error)

	// AllocHost allocates page-locked host memory, which is not zeroed and which all contexts can
	// use (cuMemHostAlloc, portable). The result must be freed with FreeHost.
	AllocHost(size int) ([]byte, error)

	// FreeHost frees memory of AllocHost (cuMemFreeHost). It may wait for the device.
	FreeHost(p []byte) error

	// RegisterHost locks the pages of p until UnregisterHost, for all contexts
	// (cuMemHostRegister). The memory must not be on the Go heap.
	RegisterHost(p []byte) error

	// UnregisterHost undoes RegisterHost (cuMemHostUnregister). It may wait for the device.
	UnregisterHost(p []byte) error

	// AddressRange returns the allocation of which p is a part (cuMemGetAddressRange).
	AddressRange(p Ptr) (base Ptr, size int, err error)

	// NewStream creates a stream that does not wait for the default stream
	// (cuStreamCreate, non-blocking).
	NewStream() (Stream, error)

	// DestroyStream frees s once its work is done; it does not wait (cuStreamDestroy).
	DestroyStream(s Stream) error

	// StreamDone reports whether s has no work left (cuStreamQuery).
	StreamDone(s Stream) (bool, error)

	// SyncStream waits until s has no work left (cuStreamSynchronize).
	SyncStream(s Stream) error

	// NewEvent creates an event of the current context (cuEventCreate).
	NewEvent(flags EventFlags) (Event, error)

	// DestroyEvent frees e; work that waits for it goes on to do so (cuEventDestroy).
	DestroyEvent(e Event) error

	// Record makes e complete when the present work of s is done (cuEventRecord). Both must be of
	// one context.
	Record(e Event, s Stream) error

	// Wait delays later work of s until the last Record of e before this call has completed
	// (cuStreamWaitEvent). The event may be of another context.
	Wait(s Stream, e Event) error

	// EventDone reports whether the last Record of e has completed (cuEventQuery). It is true
	// for an event that was never recorded.
	EventDone(e Event) (bool, error)

	// SyncEvent waits until the last Record of e has completed (cuEventSynchronize).
	SyncEvent(e Event) error

	// Copy enqueues a copy of n bytes on s, between any devices and the host (cuMemcpyAsync).
	// Host memory must be page-locked; with other memory, Copy may wait for the stream.
	Copy(dst, src Ptr, n int, s Stream) error

	// Fill enqueues that the words of 32 bits at dst are set to v (cuMemsetD32Async). dst must be
	// aligned to 4 bytes.
	Fill(dst Ptr, v uint32, words int, s Stream) error

	// LoadModule loads kernels in PTX, which need not end with a zero (cuModuleLoadData).
	LoadModule(image []byte) (Module, error)

	// UnloadModule frees m and its functions (cuModuleUnload).
	UnloadModule(m Module) error

	// Function returns the kernel with this name (cuModuleGetFunction).
	Function(m Module, name string) (Function, error)

	// Launch enqueues a kernel on s (cuLaunchKernel). args has the values of its parameters, each at
	// a multiple of its size, as in a struct in C; Launch copies them. shared is in bytes.
	Launch(f Function, grid, block Dim, shared int, s Stream, args []byte) error

	// MemHandle returns a handle of the allocation that begins at p (cuIpcGetMemHandle).
	MemHandle(p Ptr) (IPCHandle, error)

	// OpenMem maps memory of another process, with access for peer devices
	// (cuIpcOpenMemHandle_v2). The result must be given back with CloseMem.
	OpenMem(h *IPCHandle) (Ptr, error)

	// CloseMem unmaps memory of OpenMem (cuIpcCloseMemHandle). It may wait for the device.
	CloseMem(p Ptr) error

	// EventHandle returns a handle of e, which must have both flags (cuIpcGetEventHandle).
	EventHandle(e Event) (IPCHandle, error)

	// OpenEvent returns an event of another process (cuIpcOpenEventHandle). The result must be given
	// to DestroyEvent.
	OpenEvent(h *IPCHandle) (Event, error)
}

// HostPtr returns the address of the first byte of p, for use in Copy. The caller keeps p reachable
// until the copy is done; p must not be on the Go heap if the copy outlives the call.
func HostPtr(p []byte) Ptr { return Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(p)))) }
