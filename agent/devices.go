package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/devicemap"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// DeviceMap has, for devices of one worker, the device of another one to which tensors are sent.
type DeviceMap = devicemap.Map

// SetDeviceMap adds the pairs of m to the device map for tensors that are sent to worker. The error matches
// ErrConfig if a device has a negative index, or is sent to two devices; c does not change then.
func (c *Config) SetDeviceMap(worker string, m DeviceMap) error {
	for from, to := range m {
		if err := checkPair(from, to); err != nil {
			return err
		}
		if before, ok := c.DeviceMaps[worker][from]; ok && before != to {
			return &DeviceMapError{Device: from, First: before, Second: to}
		}
	}
	if c.DeviceMaps == nil {
		c.DeviceMaps = map[string]DeviceMap{}
	}
	merged := DeviceMap{}
	maps.Copy(merged, c.DeviceMaps[worker])
	maps.Copy(merged, m)
	c.DeviceMaps[worker] = merged
	return nil
}

// DeviceMapError reports that a device map sends one device to two others. It matches ErrConfig.
type DeviceMapError struct{ Device, First, Second device.Device }

func (e *DeviceMapError) Error() string {
	return fmt.Sprintf("%v: the device map sends %v to %v and to %v", ErrConfig, e.Device, e.First, e.Second)
}

// Is makes the error match ErrConfig.
func (e *DeviceMapError) Is(target error) bool { return target == ErrConfig }

func checkPair(from, to device.Device) error {
	for _, d := range []device.Device{from, to} {
		if d.Kind == "" || d.Index < 0 {
			return fmt.Errorf("%w: device map: %v: a device has a kind, and its index must not be negative", ErrConfig, d)
		}
	}
	return nil
}

// devices is the device kinds of an agent other than the CPU, and its devices and device maps.
type devices struct {
	kinds map[string]device.Kind
	node  devicemap.Node
}

func newDevices(c *Config) (*devices, error) {
	d := &devices{kinds: map[string]device.Kind{}, node: devicemap.Node{Name: c.Name, Devices: slices.Clone(c.Devices), Counts: map[string]int{}, Maps: map[string]devicemap.Map{}}}
	for _, k := range c.Kinds {
		if k == nil || k.Name() == device.KindCPU || d.kinds[k.Name()] != nil {
			return nil, fmt.Errorf("%w: Kinds has nil, %s, or a kind twice", ErrConfig, device.KindCPU)
		}
		d.kinds[k.Name()] = k
		if k.Viable() == nil {
			d.node.Counts[k.Name()] = len(k.Devices())
		}
	}
	for _, on := range c.Devices {
		if on.Kind == device.KindCPU {
			return nil, fmt.Errorf("%w: Devices has %v, and lists devices beside the CPU", ErrConfig, on)
		}
	}
	for worker, m := range c.DeviceMaps {
		for from, to := range m {
			if err := checkPair(from, to); err != nil {
				return nil, err
			}
		}
		d.node.Maps[worker] = maps.Clone(m)
	}
	return d, nil
}

// checkDeviceMaps returns an error that matches ErrDeviceMaps if the device maps of the members do not fit.
func (a *Agent) checkDeviceMaps(static bool) error { return devicemap.Check(a.nodes(), static) }

// nodes returns the devices and device maps of all members, by rank.
func (a *Agent) nodes() []devicemap.Node {
	var all []devicemap.Node
	for _, p := range a.peers.members() {
		all = append(all, p.published.Node(p.info.Name))
	}
	return all
}

// Devices returns the devices beside the CPU on which this worker sends and receives tensors, by kind and index:
// Config.Devices or, without them, those in its device maps and in the maps of the present members to it.
func (a *Agent) Devices() []device.Device { return a.devices.node.Used(a.nodes()) }

// DeviceError reports a tensor on a device that the device map does not have. The errors that contain it match
// ErrArguments or, for a reply, ErrResult.
type DeviceError struct {
	Worker string        // to which the tensor was to be sent
	Device device.Device // of the tensor
	Reply  bool          // the tensor is in a reply: the map is that of Worker
	NoMap  bool          // there is no map at all
}

func (e *DeviceError) Error() string {
	if e.Reply {
		return fmt.Sprintf("a tensor is on %v, to which the device map of %s sends none of its devices: move it to the CPU, or set DeviceMaps there", e.Device, e.Worker)
	}
	return fmt.Sprintf("a tensor is on %v, and the device map for %s does not have it: move it to the CPU, or set DeviceMaps", e.Device, e.Worker)
}

// target returns the device at the receiver to which a tensor on src is sent. For a request this is
// the device that the agent's device map gives, and for a reply that of the inverse of the caller's
// map. Host memory is sent to host memory if the map has no other device for it. Otherwise the error is a *DeviceError.
func (out *outMessage) target(d *devices, src device.Device) (device.Device, error) {
	m, reply := d.node.Maps[out.view.Peer.Name], out.view.Kind != KindRequest
	if reply {
		m = out.replyMap
	}
	to, ok := m[src]
	switch {
	case ok:
		return to, nil
	case src == device.CPU():
		return src, nil
	}
	return src, &DeviceError{Worker: out.view.Peer.Name, Device: src, Reply: reply, NoMap: len(m) == 0}
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

// peerTerms are the terms for calls between both ends that the peer has sent in the handshake.
type peerTerms struct {
	callBytes int          // the peer's limit for calls of this end
	routes    []wire.Route // of the peer's tensors, to devices of this end
}

// replyDevices returns the devices to which tensors in replies are sent, by the device here. routes are those of
// the caller: for each device of the caller, the device here to which its tensors are sent.
func replyDevices(routes []wire.Route) DeviceMap {
	back := DeviceMap{}
	for _, r := range routes {
		back[r.To] = r.From
	}
	return back
}
