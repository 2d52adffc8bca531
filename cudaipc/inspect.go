package cudaipc

import (
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
)

// Describe returns the model, the compute capability and the UUID of d, for people. It initialises no
// context. The error matches device.ErrDevice or ErrClosed, or is that of the driver.
func (k *Kind) Describe(d device.Device) (string, error) {
	g, err := k.gpuOf(d)
	if err != nil {
		return "", err
	}
	name, err := k.driver.DeviceName(d.Index)
	if err != nil {
		return "", err
	}
	major, err := k.driver.DeviceAttribute(driver.AttributeMajor, d.Index)
	if err != nil {
		return "", err
	}
	minor, err := k.driver.DeviceAttribute(driver.AttributeMinor, d.Index)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, compute capability %d.%d, %s", name, major, minor, uuidText(g.uuid)), nil
}

// CheckPeers returns nil if each of two GPUs can access the memory of the other, and otherwise the
// reason. Without that, cuda_ipc does not connect them. It initialises no context.
func (k *Kind) CheckPeers(a, b device.Device) error {
	near, err := k.gpuOf(a)
	if err != nil {
		return err
	}
	far, err := k.gpuOf(b)
	if err != nil {
		return err
	}
	if near != far && !(k.canAccess(near, far) && k.canAccess(far, near)) {
		return fmt.Errorf("cudaipc: %v and %v cannot access each other's memory: %w", a, b, errors.ErrUnsupported)
	}
	return nil
}

// CheckIPC returns nil if memory and events of d have handles for other processes, and otherwise the
// reason, a [*HandleError] or that of the driver. It initialises the context of d if the properties of the
// device do not exclude handles. Factories of [NewIPC] that are made later do not serve a d without handles.
func (k *Kind) CheckIPC(d device.Device) error {
	g, err := k.gpuOf(d)
	if err != nil {
		return err
	}
	if err := g.handles(); err != nil {
		return err
	}
	s, err := g.defaultStream()
	if err != nil {
		return err
	}
	m, err := g.alloc(1, s)
	if err != nil {
		return err
	}
	defer m.release()
	if err := g.enter(); err != nil {
		return err
	}
	defer g.leave()
	if _, err := g.memHandle(m.block.segment.base); err != nil {
		return err
	}
	e, _, err := g.newInterprocessEvent()
	if err != nil {
		return err
	}
	return g.driver.DestroyEvent(e)
}
