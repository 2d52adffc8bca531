package agent

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// devices is what an agent knows of memory that is not the host's.
type devices struct {
	kinds map[string]device.Kind
	place func(worker string, src device.Device) (device.Device, bool)
}

func newDevices(c *Config) (*devices, error) {
	d := &devices{kinds: map[string]device.Kind{}, place: c.DeviceMap}
	for _, k := range c.Kinds {
		if k == nil || k.Name() == device.KindCPU || d.kinds[k.Name()] != nil {
			return nil, fmt.Errorf("%w: Kinds has nil, %s, or a kind twice", ErrConfig, device.KindCPU)
		}
		d.kinds[k.Name()] = k
	}
	return d, nil
}

// target is where a tensor of a message goes that lies on src: as the device map of the
// caller says, there or back.
func (e *envelope) target(d *devices, src device.Device) (device.Device, error) {
	worker := e.about.Peer.Name
	if src == device.CPU() {
		return src, nil
	}
	if e.about.Kind != KindRequest {
		if to, ok := e.back[src]; ok {
			return to, nil
		}
		return src, fmt.Errorf("a tensor is on %v, and the device map of %s has no device, or several, that go there: move it to the CPU, or set DeviceMap there", src, worker)
	}
	if d.place != nil {
		if to, ok := d.place(worker, src); ok {
			return to, nil
		}
	}
	return src, fmt.Errorf("a tensor is on %v, and the device map has no device of %s for it: move it to the CPU, or set DeviceMap", src, worker)
}

// alloc makes memory for a tensor that comes, which is valid on the stream of its
// buffer.
func (d *devices) alloc(on device.Device, size int, host tensor.Allocator) (*tensor.Storage, error) {
	if on == device.CPU() {
		return host.Alloc(size)
	}
	kind := d.kinds[on.Kind]
	if kind == nil {
		return nil, fmt.Errorf("%w: tensor for device %v, which is not among the Kinds here", ErrProtocol, on)
	}
	s, err := kind.NewStream(on)
	if err != nil {
		return nil, err
	}
	buf, err := kind.Alloc(on, size, s)
	if err != nil {
		return nil, err
	}
	return tensor.NewStorage(buf, nil)
}

// streams are those on which the tensors of a message are valid, if any are not on the
// host.
func (a *arrival) streams() []device.Stream {
	var all []device.Stream
	for i := range a.memory.Tensors {
		if s := a.memory.Tensors[i].Stream(); s != nil {
			all = append(all, s)
		}
	}
	return all
}

// order makes the streams of ctx wait for the tensors of a result.
func order(ctx context.Context, streams []device.Stream) error {
	if len(streams) == 0 {
		return nil
	}
	f := future.New[None]()
	if err := f.SetOn(None{}, streams...); err != nil {
		return err
	}
	_, err := f.Wait(ctx)
	return err
}
