package gorgonia

/*
#include <cuda.h>
#cgo noescape cuDeviceGetUuid_v2
#cgo nocallback cuDeviceGetUuid_v2

static CUresult popContext(void) {
	CUcontext popped;
	return cuCtxPopCurrent(&popped);
}
#cgo nocallback popContext
*/
import "C"

import (
	"math"
	"runtime"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
)

// device returns the device with the index dev. A number that 32 bits cannot hold is an error of
// the function call.
func device(call string, dev int) (cu.Device, error) {
	if dev < 0 || dev > math.MaxInt32 {
		return 0, driver.Check(call, driver.ResultInvalidDevice)
	}
	return cu.Device(dev), nil
}

func (cuda) DeviceCount() (int, error) {
	n, err := cu.NumDevices()
	return n, check("cuDeviceGetCount", err)
}

func (cuda) DeviceName(dev int) (string, error) {
	const call = "cuDeviceGetName"
	d, err := device(call, dev)
	if err != nil {
		return "", err
	}
	name, err := d.Name()
	return name, check(call, err)
}

// DeviceUUID calls C, since cu has only the first version of the function, which returns the same
// UUID for all MIG instances of a device.
func (cuda) DeviceUUID(dev int) (id driver.UUID, err error) {
	const call = "cuDeviceGetUuid"
	d, err := device(call, dev)
	if err != nil {
		return id, err
	}
	return id, checkResult(call, C.cuDeviceGetUuid_v2((*C.CUuuid)(unsafe.Pointer(&id)), C.CUdevice(d)))
}

func (cuda) DeviceAttribute(a driver.DeviceAttribute, dev int) (int, error) {
	const call = "cuDeviceGetAttribute"
	d, err := device(call, dev)
	if err != nil {
		return 0, err
	}
	v, err := d.Attribute(cu.DeviceAttribute(a))
	return v, check(call, err)
}

func (cuda) DeviceCanAccessPeer(dev, peer int) (bool, error) {
	const call = "cuDeviceCanAccessPeer"
	d, err := device(call, dev)
	if err != nil {
		return false, err
	}
	p, err := device(call, peer)
	if err != nil {
		return false, err
	}
	can, err := d.CanAccessPeer(p)
	return can != 0, check(call, err)
}

func (cuda) PrimaryContextRetain(dev int) (driver.Context, error) {
	const call = "cuDevicePrimaryCtxRetain"
	d, err := device(call, dev)
	if err != nil {
		return 0, err
	}
	c, err := d.RetainPrimaryCtx()
	return Context(c), check(call, err)
}

func (cuda) PrimaryContextRelease(dev int) error {
	const call = "cuDevicePrimaryCtxRelease"
	d, err := device(call, dev)
	if err != nil {
		return err
	}
	return check(call, d.ReleasePrimaryCtx())
}

func (cuda) PrimaryContextActive(dev int) (bool, error) {
	const call = "cuDevicePrimaryCtxGetState"
	d, err := device(call, dev)
	if err != nil {
		return false, err
	}
	_, active, err := d.PrimaryCtxState()
	return active != 0, check(call, err)
}

func (cuda) Push(c driver.Context) error {
	runtime.LockOSThread()
	if err := check("cuCtxPushCurrent", cu.PushCurrentCtx(CUContext(c))); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	return nil
}

// Pop calls C, since cu.PopCurrentCtx allocates. It ignores the result: the function returns errors
// of earlier work, too, and the context is popped nevertheless.
func (cuda) Pop() {
	C.popContext()
	runtime.UnlockOSThread()
}

func (cuda) EnablePeerAccess(peer driver.Context) error {
	return check("cuCtxEnablePeerAccess", CUContext(peer).EnablePeerAccess(0))
}
