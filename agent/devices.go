package agent

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// devices is the device kinds of an agent other than the CPU, and its device map.
type devices struct {
	kinds     map[string]device.Kind
	deviceMap func(worker string, src device.Device) (device.Device, bool)
}

func newDevices(c *Config) (*devices, error) {
	d := &devices{kinds: map[string]device.Kind{}, deviceMap: c.DeviceMap}
	for _, k := range c.Kinds {
		if k == nil || k.Name() == device.KindCPU || d.kinds[k.Name()] != nil {
			return nil, fmt.Errorf("%w: Kinds has nil, %s, or a kind twice", ErrConfig, device.KindCPU)
		}
		d.kinds[k.Name()] = k
	}
	return d, nil
}

// target returns the device at the receiver to which a tensor on src is sent. For a request this is
// the device that the agent's device map gives. For a reply it is the device from which the caller
// sends tensors to src, by the caller's map. Host memory is sent to host memory. If the map has no
// device for src, or a reply could go to several, target returns src and an error.
func (out *outMessage) target(d *devices, src device.Device) (device.Device, error) {
	worker := out.view.Peer.Name
	if src == device.CPU() {
		return src, nil
	}
	if out.view.Kind != KindRequest {
		if to, ok := out.replyMap[src]; ok {
			return to, nil
		}
		return src, fmt.Errorf("a tensor is on %v, and the device map of %s has no device, or several, that go there: move it to the CPU, or set DeviceMap there", src, worker)
	}
	if d.deviceMap != nil {
		if to, ok := d.deviceMap(worker, src); ok {
			return to, nil
		}
	}
	return src, fmt.Errorf("a tensor is on %v, and the device map has no device of %s for it: move it to the CPU, or set DeviceMap", src, worker)
}

// alloc allocates size bytes for a tensor that is received. Memory of the CPU comes from host.
// Memory of another device comes from the device kind, and is valid on a new stream. The error is
// that of the allocator or the device kind, or matches ErrProtocol if the kind is not among
// Config.Kinds.
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

// streams returns the streams on which the tensors of a received message are valid: one for each
// tensor whose memory has a stream, and nil if there is none.
func (in *inMessage) streams() []device.Stream {
	var all []device.Stream
	for i := range in.memory.Tensors {
		if s := in.memory.Tensors[i].Stream(); s != nil {
			all = append(all, s)
		}
	}
	return all
}

// order makes the current streams of ctx (device.StreamFrom) wait for the work that was enqueued on
// streams before, so that the tensors of a result can be used on the streams of ctx. The host does
// not wait. The error is a *future.StreamError.
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

// routes returns the pairs of the device map for the worker of that name: one for each device here
// that is of a viable kind and that the map sends to a device there. It returns nil without a
// device map.
func (d *devices) routes(worker string) []wire.Route {
	if d.deviceMap == nil {
		return nil
	}
	var all []wire.Route
	for _, k := range d.kinds {
		if k.Viable() != nil {
			continue
		}
		for _, from := range k.Devices() {
			if to, ok := d.deviceMap(worker, from); ok {
				all = append(all, wire.Route{From: from, To: to})
			}
		}
	}
	return all
}

// peerTerms are the terms for calls between both ends that the peer has sent in the handshake.
type peerTerms struct {
	callBytes int          // the peer's limit for calls of this end
	routes    []wire.Route // of the peer's tensors, to devices of this end
}

// deviceRoutes maps the device of a tensor to the device to which it is sent.
type deviceRoutes map[device.Device]device.Device

// replyDevices returns the devices to which tensors in replies are sent. routes are those of the
// caller: for each device of the caller, the device here to which its tensors are sent. The result
// has the inverse, by the device here, without devices to which the caller sends from several
// devices.
func replyDevices(routes []wire.Route) deviceRoutes {
	back := deviceRoutes{}
	var unclear []device.Device
	for _, r := range routes {
		if _, twice := back[r.To]; twice {
			unclear = append(unclear, r.To)
		}
		back[r.To] = r.From
	}
	for _, d := range unclear {
		delete(back, d)
	}
	return back
}
