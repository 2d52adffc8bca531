package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/devicemap"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/streampool"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
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
	used  atomic.Pointer[usedDevices] // nil without Kinds
	pool  streampool.Pool
}

// usedDevices is the devices of Agent.Devices, and the same for futures of calls.
type usedDevices struct {
	list    []device.Device
	futures *future.Devices
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
func (a *Agent) Devices() []device.Device {
	if used := a.devices.used.Load(); used != nil {
		return slices.Clone(used.list)
	}
	return nil
}

// updateDevices is called when the members have changed.
func (a *Agent) updateDevices() {
	if len(a.devices.kinds) > 0 {
		used := usedDevices{list: a.devices.node.Used(a.nodes())}
		used.futures, _ = future.NewDevices(used.list, a.devices, a.buffers) // without the CPU it does not fail
		a.devices.used.Store(&used)
	}
}

// buffers returns the memory of the tensors in the value to which ptr points.
func (a *Agent) buffers(ptr any) ([]device.Buffer, error) { return codec.Buffers(a.registry, ptr) }

// futureDevices returns the devices for the futures of calls, or nil.
func (a *Agent) futureDevices() *future.Devices {
	if used := a.devices.used.Load(); used != nil {
		return used.futures
	}
	return nil
}

// NewFuture returns a pending future whose value may have tensors on these devices; without any, on all that a uses.
// See future.Future.SetFrom and future.ThenOn. A panic of a callback is logged. The error is a *future.CPUError if
// devices has the CPU.
func NewFuture[T any](a *Agent, devices ...device.Device) (*Future[T], error) {
	if len(devices) == 0 {
		devices = a.Devices()
	}
	d, err := future.NewDevices(devices, a.devices, a.buffers)
	if err != nil {
		return nil, err
	}
	return future.NewWith[T](future.Options{OnPanic: a.onPanic, Devices: d}), nil
}

// Get implements future.StreamPool.
func (d *devices) Get(on device.Device) (device.Stream, error) {
	kind := d.kinds[on.Kind]
	if kind == nil {
		return nil, fmt.Errorf("%w: %v is not among the Kinds", device.ErrDevice, on)
	}
	return d.pool.Get(kind, on)
}

// Put implements future.StreamPool.
func (d *devices) Put(streams ...device.Stream) { d.pool.Put(streams...) }

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
// Memory of another device comes from the device kind, and is valid on the stream of in for that device. The error is
// that of the allocator or the device kind, or matches ErrProtocol if the kind is not among
// Config.Kinds.
func (d *devices) alloc(in *inMessage, on device.Device, size int, host tensor.Allocator) (*tensor.Storage, error) {
	if on == device.CPU() {
		return host.Alloc(size)
	}
	kind := d.kinds[on.Kind]
	if kind == nil {
		return nil, fmt.Errorf("%w: tensor for device %v, which is not among the Kinds here", ErrProtocol, on)
	}
	s := streamOn(in.streams, on)
	if s == nil {
		var err error
		if s, err = d.pool.Get(kind, on); err != nil {
			return nil, err
		}
		if s != nil {
			in.streams = append(in.streams, s)
		}
	}
	buf, err := kind.Alloc(on, size, s)
	if err != nil {
		return nil, err
	}
	return tensor.NewStorage(buf, nil)
}

// streamOn returns the stream of a device among streams, or nil.
func streamOn(streams []device.Stream, on device.Device) device.Stream {
	for _, s := range streams {
		if s.Device() == on {
			return s
		}
	}
	return nil
}

// withStreams gives the request a stream for each device of this worker: that of its tensors, or a fresh one. They are
// in r.ctx, and belong to the request until its reply was sent. The error is that of the device kind.
func (d *devices) withStreams(r *Request, in *inMessage) error {
	r.streams, in.streams = in.streams, nil
	used := d.used.Load()
	if used == nil {
		return nil
	}
	for _, on := range used.list {
		kind := d.kinds[on.Kind]
		if kind == nil || streamOn(r.streams, on) != nil {
			continue
		}
		s, err := d.pool.Get(kind, on)
		if err != nil {
			return err
		}
		if s != nil {
			r.streams = append(r.streams, s)
		}
	}
	r.ctx = device.WithStreams(r.ctx, r.streams...)
	return nil
}

// sendStream is the stream by which the tensors of a message are copied from one device.
type sendStream struct {
	device.Stream
	sources []device.Stream // on which the tensors are valid, or which may still change them
}

// orderTensors makes the tensors of a message valid on streams of its own, which wait for the streams of the tensors and
// for those of ctx: the copies do not delay later work on these. The error is that of the device kind or of a stream.
func (out *outMessage) orderTensors(ctx context.Context, tensors []pipe.Tensor, d *devices) error {
	for i := range tensors {
		b := tensors[i].Buffer
		on := b.Device()
		if b.Stream() != nil {
			on = b.Stream().Device()
		} else if b.IsHost() {
			continue
		}
		current := device.StreamFrom(ctx, on)
		kind := d.kinds[on.Kind]
		if kind == nil || b.Stream() == nil && current == nil {
			continue
		}
		k := slices.IndexFunc(out.streams, func(s sendStream) bool { return s.Device() == on })
		if k < 0 {
			s, err := d.pool.Get(kind, on)
			if err != nil || s == nil {
				return err
			}
			k, out.streams = len(out.streams), append(out.streams, sendStream{Stream: s})
			if err := out.streams[k].after(current); err != nil {
				return err
			}
		}
		if err := out.streams[k].after(b.Stream()); err != nil {
			return err
		}
		tensors[i].Buffer = b.WithStream(out.streams[k].Stream)
	}
	return nil
}

// after makes the work that is enqueued on s from now on wait for the work of source, which may be nil.
func (s *sendStream) after(source device.Stream) error {
	if source == nil || slices.Contains(s.sources, source) {
		return nil
	}
	if err := s.WaitFor(source); err != nil {
		return err
	}
	s.sources = append(s.sources, source)
	return nil
}

// endStreams returns the streams of a message whose copies are enqueued. Later work on the streams of the tensors waits
// for the copies, so that their memory may be changed.
func (out *outMessage) endStreams(p *streampool.Pool) {
	for _, s := range out.streams {
		for _, source := range s.sources {
			_ = source.WaitFor(s) // a stream that fails does no further work
		}
		p.Put(s.Stream)
	}
	clear(out.streams)
	out.streams = out.streams[:0]
}

// order makes the current streams of ctx (device.StreamFrom) wait for the work that was enqueued on
// streams before, so that the tensors of a result can be used on the streams of ctx. The host does
// not wait. The error is a *future.StreamError.
func order(ctx context.Context, streams []device.Stream) error {
	for _, s := range streams {
		if current := device.StreamFrom(ctx, s.Device()); current != nil {
			if err := current.WaitFor(s); err != nil {
				return &future.StreamError{Op: "wait", Device: s.Device(), Err: err}
			}
		}
	}
	return nil
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
