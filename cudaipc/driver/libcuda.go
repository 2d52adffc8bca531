//go:build !nocuda && linux && (amd64 || arm64)

package driver

import (
	"bytes"
	"runtime"
	"unsafe"
)

// Flags of the driver's functions.
const (
	hostAllocPortable    = 1 // all contexts may use the memory
	hostRegisterPortable = 1
	streamNonBlocking    = 1 // does not wait for the default stream
	ipcLazyPeerAccess    = 1 // the only flag of cuIpcOpenMemHandle

	launchBufferPointer = 1 // the keys of cuLaunchKernel's extra options
	launchBufferSize    = 2
)

// number returns n for a parameter of 32 bits. A number that does not fit becomes -1, which no function
// of the driver accepts.
func number(n int) uintptr {
	if n != int(int32(n)) {
		n = -1
	}
	return uintptr(uint32(n))
}

func (l *libcuda) Version() (int, error) {
	var v int32
	err := call("cuDriverGetVersion", l.getVersion, uintptr(unsafe.Pointer(&v)))
	return int(v), err
}

func (l *libcuda) DeviceCount() (int, error) {
	var n int32
	err := call("cuDeviceGetCount", l.getCount, uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

func (l *libcuda) DeviceName(dev int) (string, error) {
	var name [256]byte
	err := call("cuDeviceGetName", l.getName, uintptr(unsafe.Pointer(&name)), uintptr(len(name)), number(dev))
	text, _, _ := bytes.Cut(name[:], []byte{0})
	return string(text), err
}

func (l *libcuda) DeviceUUID(dev int) (u UUID, err error) {
	err = call("cuDeviceGetUuid", l.getUUID, uintptr(unsafe.Pointer(&u)), number(dev))
	return u, err
}

func (l *libcuda) DeviceAttribute(a DeviceAttribute, dev int) (int, error) {
	var v int32
	err := call("cuDeviceGetAttribute", l.getAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), number(dev))
	return int(v), err
}

func (l *libcuda) DeviceCanAccessPeer(dev, peer int) (bool, error) {
	var v int32
	err := call("cuDeviceCanAccessPeer", l.canAccessPeer, uintptr(unsafe.Pointer(&v)), number(dev), number(peer))
	return v != 0, err
}

func (l *libcuda) PrimaryContextRetain(dev int) (c Context, err error) {
	err = call("cuDevicePrimaryCtxRetain", l.primaryRetain, uintptr(unsafe.Pointer(&c)), number(dev))
	return c, err
}

func (l *libcuda) PrimaryContextRelease(dev int) error {
	return l.enqueue("cuDevicePrimaryCtxRelease", l.primaryRelease, number(dev))
}

func (l *libcuda) PrimaryContextActive(dev int) (bool, error) {
	var flags uint32
	var active int32
	err := call("cuDevicePrimaryCtxGetState", l.primaryState, number(dev), uintptr(unsafe.Pointer(&flags)), uintptr(unsafe.Pointer(&active)))
	return active != 0, err
}

// PointerAttribute passes 8 bytes for every attribute. The driver writes 4 of them for most, on a
// little-endian machine the low ones.
func (l *libcuda) PointerAttribute(a PointerAttribute, p Ptr) (int64, error) {
	var v int64
	err := call("cuPointerGetAttribute", l.pointerAttribute, uintptr(unsafe.Pointer(&v)), uintptr(a), uintptr(p))
	return v, err
}

func (l *libcuda) Push(c Context) error {
	runtime.LockOSThread()
	if err := l.enqueue("cuCtxPushCurrent", l.push, uintptr(c)); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	return nil
}

// Pop ignores the result: the driver refuses only to pop from an empty stack. The receiver, which holds
// popped, stays alive for the call.
func (l *libcuda) Pop() {
	_ = l.enqueue("cuCtxPopCurrent", l.pop, uintptr(unsafe.Pointer(&l.popped)))
	runtime.UnlockOSThread()
}

func (l *libcuda) EnablePeerAccess(peer Context) error {
	return l.enqueue("cuCtxEnablePeerAccess", l.enablePeer, uintptr(peer), 0)
}

func (l *libcuda) Alloc(size int) (p Ptr, err error) {
	err = call("cuMemAlloc", l.memAlloc, uintptr(unsafe.Pointer(&p)), uintptr(size))
	return p, err
}

func (l *libcuda) Free(p Ptr) error { return l.enqueue("cuMemFree", l.memFree, uintptr(p)) }

func (l *libcuda) MemInfo() (free, total uint64, err error) {
	err = call("cuMemGetInfo", l.memInfo, uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total)))
	return free, total, err
}

func (l *libcuda) AllocHost(size int) ([]byte, error) {
	var p unsafe.Pointer
	if err := call("cuMemHostAlloc", l.hostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(size), hostAllocPortable); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), size), nil
}

func (l *libcuda) FreeHost(p []byte) error {
	return call("cuMemFreeHost", l.hostFree, uintptr(HostPtr(p)))
}

func (l *libcuda) RegisterHost(p []byte) error {
	return call("cuMemHostRegister", l.hostRegister, uintptr(HostPtr(p)), uintptr(len(p)), hostRegisterPortable)
}

func (l *libcuda) UnregisterHost(p []byte) error {
	return call("cuMemHostUnregister", l.hostUnregister, uintptr(HostPtr(p)))
}

func (l *libcuda) AddressRange(p Ptr) (base Ptr, size int, err error) {
	var n uintptr
	err = call("cuMemGetAddressRange", l.addressRange, uintptr(unsafe.Pointer(&base)), uintptr(unsafe.Pointer(&n)), uintptr(p))
	return base, int(n), err
}

func (l *libcuda) NewStream() (s Stream, err error) {
	err = call("cuStreamCreate", l.streamCreate, uintptr(unsafe.Pointer(&s)), streamNonBlocking)
	return s, err
}

func (l *libcuda) DestroyStream(s Stream) error {
	return l.enqueue("cuStreamDestroy", l.streamDestroy, uintptr(s))
}

func (l *libcuda) StreamDone(s Stream) (bool, error) {
	return l.query("cuStreamQuery", l.streamQuery, uintptr(s))
}

func (l *libcuda) SyncStream(s Stream) error {
	return l.enqueue("cuStreamSynchronize", l.streamSync, uintptr(s))
}

func (l *libcuda) NewEvent(flags EventFlags) (e Event, err error) {
	err = call("cuEventCreate", l.eventCreate, uintptr(unsafe.Pointer(&e)), uintptr(flags))
	return e, err
}

func (l *libcuda) DestroyEvent(e Event) error {
	return l.enqueue("cuEventDestroy", l.eventDestroy, uintptr(e))
}

func (l *libcuda) Record(e Event, s Stream) error {
	return l.enqueue("cuEventRecord", l.eventRecord, uintptr(e), uintptr(s))
}

func (l *libcuda) Wait(s Stream, e Event) error {
	return l.enqueue("cuStreamWaitEvent", l.streamWait, uintptr(s), uintptr(e), 0)
}

func (l *libcuda) EventDone(e Event) (bool, error) {
	return l.query("cuEventQuery", l.eventQuery, uintptr(e))
}

func (l *libcuda) SyncEvent(e Event) error {
	return l.enqueue("cuEventSynchronize", l.eventSync, uintptr(e))
}

func (l *libcuda) Copy(dst, src Ptr, n int, s Stream) error {
	return l.enqueue("cuMemcpyAsync", l.memcpy, uintptr(dst), uintptr(src), uintptr(n), uintptr(s))
}

func (l *libcuda) Fill(dst Ptr, v uint32, words int, s Stream) error {
	return l.enqueue("cuMemsetD32Async", l.memset, uintptr(dst), uintptr(v), uintptr(words), uintptr(s))
}

func (l *libcuda) LoadModule(image []byte) (m Module, err error) {
	text := append(bytes.Clone(image), 0)
	err = call("cuModuleLoadData", l.moduleLoad, uintptr(unsafe.Pointer(&m)), uintptr(unsafe.Pointer(&text[0])))
	return m, err
}

func (l *libcuda) UnloadModule(m Module) error {
	return l.enqueue("cuModuleUnload", l.moduleUnload, uintptr(m))
}

func (l *libcuda) Function(m Module, name string) (f Function, err error) {
	text := append([]byte(name), 0)
	err = call("cuModuleGetFunction", l.moduleFunction, uintptr(unsafe.Pointer(&f)), uintptr(m), uintptr(unsafe.Pointer(&text[0])))
	return f, err
}

// Launch passes the arguments as extra options, a list of keys and values that ends with 0.
func (l *libcuda) Launch(f Function, grid, block Dim, shared int, s Stream, args []byte) error {
	extra := struct {
		keyPointer uintptr
		pointer    *byte
		keySize    uintptr
		size       *uintptr
		end        uintptr
		length     uintptr // to which size points
	}{keyPointer: launchBufferPointer, pointer: unsafe.SliceData(args), keySize: launchBufferSize, length: uintptr(len(args))}
	extra.size = &extra.length
	return call("cuLaunchKernel", l.launch, uintptr(f),
		uintptr(grid.X), uintptr(grid.Y), uintptr(grid.Z), uintptr(block.X), uintptr(block.Y), uintptr(block.Z),
		number(shared), uintptr(s), 0, uintptr(unsafe.Pointer(&extra)))
}

func (l *libcuda) MemHandle(p Ptr) (h IPCHandle, err error) {
	err = call("cuIpcGetMemHandle", l.ipcGetMem, uintptr(unsafe.Pointer(&h)), uintptr(p))
	return h, err
}

func (l *libcuda) OpenMem(h *IPCHandle) (p Ptr, err error) {
	err = callWithHandle("cuIpcOpenMemHandle", l.ipcOpenMem, uintptr(unsafe.Pointer(&p)), h, ipcLazyPeerAccess)
	return p, err
}

func (l *libcuda) CloseMem(p Ptr) error {
	return l.enqueue("cuIpcCloseMemHandle", l.ipcCloseMem, uintptr(p))
}

func (l *libcuda) EventHandle(e Event) (h IPCHandle, err error) {
	err = call("cuIpcGetEventHandle", l.ipcGetEvent, uintptr(unsafe.Pointer(&h)), uintptr(e))
	return h, err
}

func (l *libcuda) OpenEvent(h *IPCHandle) (e Event, err error) {
	err = callWithHandle("cuIpcOpenEventHandle", l.ipcOpenEvent, uintptr(unsafe.Pointer(&e)), h, 0)
	return e, err
}
