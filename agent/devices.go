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
// ErrConfig if a device has a negative index, or is sent to two devices, or two are sent to one in m, in which cases it
// is a *DeviceMapError; c does not change then.
func (c *Config) SetDeviceMap(worker string, m DeviceMap) error {
	merged, err := c.DeviceMaps[worker].With(m)
	if err != nil {
		return withKind(ErrConfig, err)
	}
	if c.DeviceMaps == nil {
		c.DeviceMaps = map[string]DeviceMap{}
	}
	c.DeviceMaps[worker] = merged
	return nil
}

// DeviceMapError reports a pair of a device map that SetDeviceMap or Join rejects.
type DeviceMapError = devicemap.PairError

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
			for _, on := range k.Devices() {
				d.node.Counts[k.Name()] = max(d.node.Counts[k.Name()], on.Index+1)
			}
		}
	}
	for _, on := range c.Devices {
		if on.Kind == device.KindCPU {
			return nil, fmt.Errorf("%w: Devices has %v, and lists devices beside the CPU", ErrConfig, on)
		}
	}
	for worker, m := range c.DeviceMaps {
		if err := m.Check(); err != nil {
			return nil, withKind(ErrConfig, err)
		}
		d.node.Maps[worker] = maps.Clone(m)
	}
	return d, nil
}

// checkDeviceMaps returns an error that matches ErrDeviceMaps if the device maps of the members of a static group do not
// fit or, in a dynamic group, those of this worker and those of others to it.
func (a *Agent) checkDeviceMaps(static bool) error {
	if static {
		return devicemap.Check(a.nodes())
	}
	return devicemap.CheckJoin(a.nodes(), a.self.Name)
}

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

// has reports whether this worker has a device, and uses it if it lists its devices.
func (d *devices) has(on device.Device) bool {
	kind := d.kinds[on.Kind]
	return kind != nil && slices.Contains(kind.Devices(), on) && (len(d.node.Devices) == 0 || slices.Contains(d.node.Devices, on))
}

// updateDevices is called when the members have changed, by one goroutine at a time.
func (a *Agent) updateDevices() {
	if len(a.devices.kinds) > 0 {
		all := a.devices.node.Used(a.nodes())
		// The maps of others may name devices that this worker does not have: they are checked after they are
		// published.
		used := usedDevices{list: slices.DeleteFunc(all, func(on device.Device) bool { return !a.devices.has(on) })}
		used.futures, _ = future.NewDevices(used.list, a.devices, a.buffers) // the CPU is not among them
		a.devices.used.Store(&used)
	}
}

// buffers returns the memory of the tensors in the value to which ptr points. A panic of a custom encoding is a
// *PanicError.
func (a *Agent) buffers(ptr any) (all []device.Buffer, err error) {
	err = catchPanic(func() error {
		storages, err := codec.Storages(a.registry, a.limits.Codec, ptr)
		for _, s := range storages {
			b, err := s.Buffer()
			if err != nil {
				return err
			}
			all = append(all, b)
		}
		return err
	})
	return all, err
}

// orderKept makes the tensors in the value to which ptr points, which is kept after the request, valid after the present
// work of the request's streams. It returns a future that is done, for which streams wait after that work, or nil if no tensors are found, as in a value that cannot be sent.
func (r *Request) orderKept(ptr any) (*Future[None], error) {
	if len(r.streams) == 0 {
		return nil, nil
	}
	var valid []device.Stream
	err := catchPanic(func() error {
		a := r.conn.agent
		storages, err := codec.Storages(a.registry, a.limits.Codec, ptr)
		if err != nil {
			return nil // it cannot be fetched
		}
		for _, s := range storages {
			b, err := s.Buffer()
			if err != nil {
				return err
			}
			work := streamOn(r.streams, b.Device())
			switch {
			case work == nil:
			case b.Stream() == nil:
				valid, err = append(valid, work), s.SetStream(work)
			default:
				valid, err = append(valid, b.Stream()), b.Stream().WaitFor(work)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || len(valid) == 0 {
		return nil, err
	}
	ordered := future.New[None]()
	return ordered, ordered.SetOn(None{}, valid...)
}

// futureDevices returns the devices for the futures of calls, or nil.
func (a *Agent) futureDevices() *future.Devices {
	if used := a.devices.used.Load(); used != nil {
		return used.futures
	}
	return nil
}

// NewFuture returns a pending future whose value may have tensors on these devices; without any, on all that a uses.
// See future.Future.SetFrom and future.ThenOn. A panic of a callback is logged. The error is a *future.CPUError if
// devices has the CPU, or matches device.ErrDevice if a does not have a device.
func NewFuture[T any](a *Agent, devices ...device.Device) (*Future[T], error) {
	if len(devices) == 0 {
		devices = a.Devices()
	}
	for _, on := range devices {
		if on.Kind != device.KindCPU && !a.devices.has(on) {
			return nil, fmt.Errorf("%w: %v", device.ErrDevice, on)
		}
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

// tensorRoute determines the devices of the receiver to which the tensors of a message are sent. The zero value stands
// for the device map of this worker, by which those of requests are sent.
type tensorRoute struct {
	reply   bool      // the inverse of the receiver's device map: of a reply, or a request WithReplyDevices
	inverse DeviceMap // if reply is set
}

// target returns the device at the receiver to which a tensor on src is sent. For a request this is
// the device that the agent's device map gives, and for a reply, or a request WithReplyDevices, that of
// the inverse of the receiver's map. Host memory is sent to host memory if the map has no other device for it. Otherwise the error is a
// *DeviceError.
func (out *outMessage) target(d *devices, src device.Device) (device.Device, error) {
	m := out.route.inverse
	if !out.route.reply {
		m = d.node.Maps[out.view.Peer.Name]
	}
	to, ok := m[src]
	switch {
	case ok:
		return to, nil
	case src == device.CPU():
		return src, nil
	}
	return src, &DeviceError{Worker: out.view.Peer.Name, Device: src, Reply: out.route.reply, NoMap: len(m) == 0}
}

// alloc allocates size bytes for a tensor that is received. Memory of the CPU comes from host.
// Memory of another device comes from the device kind, and is valid on the stream of in for that device. The
// error is that of the allocator or the device kind, or matches ErrProtocol if the kind is not among
// Config.Kinds, or the device not among Config.Devices.
func (d *devices) alloc(in *inMessage, on device.Device, size int, host tensor.Allocator) (*tensor.Storage, error) {
	if on == device.CPU() {
		return host.Alloc(size)
	}
	kind := d.kinds[on.Kind]
	if kind == nil {
		return nil, fmt.Errorf("%w: tensor for device %v, which is not among the Kinds here", ErrProtocol, on)
	}
	if len(d.node.Devices) > 0 && !slices.Contains(d.node.Devices, on) {
		return nil, fmt.Errorf("%w: tensor for device %v, which is not among the Devices here", ErrProtocol, on)
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
// in r.ctx, and belong to the request until its reply was sent. A device that gives no stream is left out. With a
// HostHandler r.ctx has none. The error is that of a stream.
func (d *devices) withStreams(r *Request, in *inMessage) error {
	r.streams, in.streams = in.streams, nil
	used := d.used.Load()
	if used == nil || r.handler.hostOnly {
		return nil
	}
	for _, on := range used.list {
		kind := d.kinds[on.Kind]
		if kind == nil || streamOn(r.streams, on) != nil {
			continue
		}
		if s, err := d.pool.Get(kind, on); err == nil && s != nil { // the function may not need the device
			r.streams = append(r.streams, s)
		}
	}
	for _, s := range in.tensorStreams() { // of memory that the application has chosen
		if own := streamOn(r.streams, s.Device()); own != nil {
			if err := own.WaitFor(s); err != nil {
				return err
			}
		}
	}
	r.ctx = device.WithStreams(r.ctx, r.streams...)
	return nil
}

// orderTensors makes the tensors of a message valid on streams of the message, see streampool.Message. The error is that
// of the device kind or of a stream.
func (out *outMessage) orderTensors(ctx context.Context, tensors []pipe.Tensor, d *devices) error {
	for i := range tensors {
		b, err := out.streams.Order(ctx, &d.pool, func(kind string) device.Kind { return d.kinds[kind] }, tensors[i].Buffer)
		if err != nil {
			return err
		}
		tensors[i].Buffer = b
	}
	return nil
}

// tensorStreams returns the streams on which the tensors of a received message are valid, each once: those of
// in.streams, and those of memory that the application has chosen.
func (in *inMessage) tensorStreams() []device.Stream {
	var all []device.Stream
	for i := range in.memory.Tensors {
		if s := in.memory.Tensors[i].Stream(); s != nil && !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

// order makes the current streams of ctx (device.StreamFrom) wait for the work that was enqueued on
// streams before, so that the tensors of a result can be used on the streams of ctx. The host does
// not wait. The error is a *future.StreamError.
func order(ctx context.Context, streams []device.Stream) error {
	for _, s := range streams {
		if current := device.StreamFrom(ctx, s.Device()); current != nil {
			if err := catchPanic(func() error { return current.WaitFor(s) }); err != nil {
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
