package gorgonia

/*
#include <string.h>
#include <cuda.h>

// The functions that open handles take them by value.

static CUresult openMem(CUdeviceptr *p, const void *handle) {
	CUipcMemHandle h;
	memcpy(&h, handle, sizeof h);
	return cuIpcOpenMemHandle(p, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static CUresult openEvent(CUevent *e, const void *handle) {
	CUipcEventHandle h;
	memcpy(&h, handle, sizeof h);
	return cuIpcOpenEventHandle(e, h);
}
*/
import "C"

import (
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

// The methods of this file call C, since cu has none of the functions.

// The two kinds of handles are as long as IPCHandle.
var (
	_ driver.IPCHandle = [unsafe.Sizeof(C.CUipcMemHandle{})]byte{}
	_ driver.IPCHandle = [unsafe.Sizeof(C.CUipcEventHandle{})]byte{}
)

func (cuda) MemHandle(p driver.Ptr) (h driver.IPCHandle, err error) {
	r := C.cuIpcGetMemHandle((*C.CUipcMemHandle)(unsafe.Pointer(&h)), C.CUdeviceptr(p))
	return h, checkResult("cuIpcGetMemHandle", r)
}

func (cuda) OpenMem(h *driver.IPCHandle) (driver.Ptr, error) {
	var p C.CUdeviceptr
	err := checkResult("cuIpcOpenMemHandle", C.openMem(&p, unsafe.Pointer(h)))
	return driver.Ptr(p), err
}

func (cuda) CloseMem(p driver.Ptr) error {
	return checkResult("cuIpcCloseMemHandle", C.cuIpcCloseMemHandle(C.CUdeviceptr(p)))
}

func (cuda) EventHandle(e driver.Event) (h driver.IPCHandle, err error) {
	r := C.cuIpcGetEventHandle((*C.CUipcEventHandle)(unsafe.Pointer(&h)), handle[C.CUevent](e))
	return h, checkResult("cuIpcGetEventHandle", r)
}

func (cuda) OpenEvent(h *driver.IPCHandle) (driver.Event, error) {
	var e C.CUevent
	err := checkResult("cuIpcOpenEventHandle", C.openEvent(&e, unsafe.Pointer(h)))
	return handle[driver.Event](e), err
}
