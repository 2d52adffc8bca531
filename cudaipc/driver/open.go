//go:build !nocuda && linux && (amd64 || arm64)

package driver

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/ebitengine/purego"
)

// defaultLibrary is found in the folders in which the system looks for libraries. NVIDIA's driver
// installs it.
const defaultLibrary = "libcuda.so.1"

// Open loads the driver's library, libcuda.so.1 if library is empty, initialises the driver, and
// returns it. The library stays loaded until the process ends. Without a library, or if the driver
// cannot be initialised, for example because the machine has no device, the error is a
// [*NotViableError].
func Open(library string) (Driver, error) {
	if library == "" {
		library = defaultLibrary
	}
	runtime.LockOSThread() // on which the reason of an error is found
	defer runtime.UnlockOSThread()
	handle, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, &NotViableError{Reason: "the driver's library cannot be loaded", Err: err}
	}
	l := &libcuda{}
	for name, f := range l.functions() {
		if *f, err = purego.Dlsym(handle, name); err != nil {
			return nil, &NotViableError{Reason: fmt.Sprintf("%s has no function %s", library, name), Err: err}
		}
	}
	if l.getUUID, err = purego.Dlsym(handle, "cuDeviceGetUuid_v2"); err != nil { // since CUDA 11.4
		if l.getUUID, err = purego.Dlsym(handle, "cuDeviceGetUuid"); err != nil {
			return nil, &NotViableError{Reason: library + " has no function cuDeviceGetUuid", Err: err}
		}
	}
	if err := call("cuInit", l.init, 0); err != nil {
		reason := "the driver cannot be initialised"
		if errors.Is(err, ResultNoDevice) {
			reason = "there is no device"
		}
		return nil, &NotViableError{Reason: reason, Err: err}
	}
	return l, nil
}

// libcuda implements [Driver] by calls into the driver's library.
type libcuda struct {
	init, getVersion, getCount, getName, getUUID, getAttribute, canAccessPeer            uintptr
	primaryRetain, primaryRelease, primaryState, push, pop, enablePeer, pointerAttribute uintptr
	memAlloc, memFree, memInfo, hostAlloc, hostFree, hostRegister, hostUnregister        uintptr
	addressRange, memcpy, memset                                                         uintptr
	streamCreate, streamDestroy, streamQuery, streamSync, streamWait                     uintptr
	eventCreate, eventDestroy, eventRecord, eventQuery, eventSync                        uintptr
	moduleLoad, moduleUnload, moduleFunction, launch                                     uintptr
	ipcGetMem, ipcOpenMem, ipcCloseMem, ipcGetEvent, ipcOpenEvent                        uintptr

	popped    Context   // where cuCtxPopCurrent writes; never read
	arguments sync.Pool // *[4]uintptr
}

// functions returns the functions that every supported driver has, by their names in the library.
func (l *libcuda) functions() map[string]*uintptr {
	return map[string]*uintptr{
		"cuInit":                       &l.init,
		"cuDriverGetVersion":           &l.getVersion,
		"cuDeviceGetCount":             &l.getCount,
		"cuDeviceGetName":              &l.getName,
		"cuDeviceGetAttribute":         &l.getAttribute,
		"cuDeviceCanAccessPeer":        &l.canAccessPeer,
		"cuDevicePrimaryCtxRetain":     &l.primaryRetain,
		"cuDevicePrimaryCtxRelease_v2": &l.primaryRelease,
		"cuDevicePrimaryCtxGetState":   &l.primaryState,
		"cuCtxPushCurrent_v2":          &l.push,
		"cuCtxPopCurrent_v2":           &l.pop,
		"cuCtxEnablePeerAccess":        &l.enablePeer,
		"cuPointerGetAttribute":        &l.pointerAttribute,
		"cuMemAlloc_v2":                &l.memAlloc,
		"cuMemFree_v2":                 &l.memFree,
		"cuMemGetInfo_v2":              &l.memInfo,
		"cuMemHostAlloc":               &l.hostAlloc,
		"cuMemFreeHost":                &l.hostFree,
		"cuMemHostRegister_v2":         &l.hostRegister,
		"cuMemHostUnregister":          &l.hostUnregister,
		"cuMemGetAddressRange_v2":      &l.addressRange,
		"cuMemcpyAsync":                &l.memcpy,
		"cuMemsetD32Async":             &l.memset,
		"cuStreamCreate":               &l.streamCreate,
		"cuStreamDestroy_v2":           &l.streamDestroy,
		"cuStreamQuery":                &l.streamQuery,
		"cuStreamSynchronize":          &l.streamSync,
		"cuStreamWaitEvent":            &l.streamWait,
		"cuEventCreate":                &l.eventCreate,
		"cuEventDestroy_v2":            &l.eventDestroy,
		"cuEventRecord":                &l.eventRecord,
		"cuEventQuery":                 &l.eventQuery,
		"cuEventSynchronize":           &l.eventSync,
		"cuModuleLoadData":             &l.moduleLoad,
		"cuModuleUnload":               &l.moduleUnload,
		"cuModuleGetFunction":          &l.moduleFunction,
		"cuLaunchKernel":               &l.launch,
		"cuIpcGetMemHandle":            &l.ipcGetMem,
		"cuIpcOpenMemHandle_v2":        &l.ipcOpenMem,
		"cuIpcCloseMemHandle":          &l.ipcCloseMem,
		"cuIpcGetEventHandle":          &l.ipcGetEvent,
		"cuIpcOpenEventHandle":         &l.ipcOpenEvent,
	}
}

// call calls the function at fn and returns nil or a [*CallError] with the name. Pointers must be
// converted to uintptr in the expression of the call: the directive keeps their targets alive
// and in place. It allocates.
//
//go:uintptrescapes
func call(name string, fn uintptr, args ...uintptr) error {
	r, _, _ := purego.SyscallN(fn, args...)
	return Check(name, Result(int32(r)))
}

// enqueue calls the function at fn as call does. The arguments must not be pointers to memory of Go.
// It does not allocate, because the slice that escapes in SyscallN is used again.
func (l *libcuda) enqueue(name string, fn uintptr, args ...uintptr) error {
	return Check(name, l.result(fn, args...))
}

// query calls a function that reports whether work is done, by the result ResultNotReady. It does
// not allocate.
func (l *libcuda) query(name string, fn, handle uintptr) (bool, error) {
	r := l.result(fn, handle)
	if r == ResultNotReady {
		return false, nil
	}
	return r == 0, Check(name, r)
}

func (l *libcuda) result(fn uintptr, args ...uintptr) Result {
	kept, ok := l.arguments.Get().(*[4]uintptr)
	if !ok {
		kept = new([4]uintptr)
	}
	r, _, _ := purego.SyscallN(fn, kept[:copy(kept[:], args)]...)
	l.arguments.Put(kept)
	return Result(int32(r))
}
