package pipe_test

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// npuPair is a pipe between two ends that each have devices in addition to the CPU.
type npuPair struct {
	client, server *pipe.Pipe
	near, far      *delayed.Kind
}

// onlyDevices makes a channel not serve host memory.
type onlyDevices struct{ channel.Factory }

func (f onlyDevices) DeviceDescriptors() map[device.Device]string {
	all := f.Factory.DeviceDescriptors()
	delete(all, device.CPU())
	return all
}

func connectNPUs(t *testing.T) npuPair {
	p := npuPair{near: npu.NewKind(), far: npu.NewKind()}
	t.Cleanup(p.near.Close)
	t.Cleanup(p.far.Close)
	with := func(kind *delayed.Kind) func(*pipe.Options) {
		return func(o *pipe.Options) {
			o.Channels = append(o.Channels, pipe.ChannelEntry{Name: npu.Name, Priority: 1, Factory: onlyDevices{npu.New(kind, basic.New())}})
		}
	}
	path := memPath()
	a, b := newContext(t, path, with(p.near)), newContext(t, path, with(p.far))
	p.client, p.server = connectContexts(t, a, b, path.url)
	return p
}

// alloc allocates a buffer of n bytes on the i-th device of kind, on a new stream, and returns
// both. They live until kind is closed.
func alloc(t *testing.T, kind *delayed.Kind, i, n int) (device.Buffer, *delayed.Stream) {
	s, err := kind.NewStream(kind.Devices()[i])
	require.NoError(t, err)
	b, err := kind.Alloc(kind.Devices()[i], n, s)
	require.NoError(t, err)
	return b, s.(*delayed.Stream)
}

// TestUnknownDeviceKind checks that tensors on a device kind that the package does not know arrive:
// between different devices, mixed with host tensors in one message, and each in the order of its
// stream.
func TestUnknownDeviceKind(t *testing.T) {
	p := connectNPUs(t)
	name, ok := p.client.Plan().Channel(device.Device{Kind: "npu"}, device.Device{Kind: "npu", Index: 1})
	require.True(t, ok)
	require.Equal(t, npu.Name, name)

	src, produce := alloc(t, p.near, 0, 1000)
	release := produce.Hold()
	want := pattern(1000, 5)
	require.NoError(t, p.near.Write(src, want)) // held until release
	m := &pipe.Message{Tensors: []pipe.Tensor{
		{Buffer: src, TargetDevice: device.Device{Kind: "npu", Index: 1}},
		{Buffer: device.Bytes(pattern(50, 6))},
		{Buffer: src},
	}}
	op := p.client.WriteAsync(testContext(t), m)
	in, err := p.server.Next(testContext(t))
	require.NoError(t, err)
	first, consume := alloc(t, p.far, 1, 1000)
	third, _ := alloc(t, p.far, 0, 1000)
	host := device.Bytes(make([]byte, 50))
	done := make(chan error, 1)
	go func() {
		done <- in.Read(testContext(t), pipe.Allocation{Tensors: []device.Buffer{first, host, third}})
	}()
	release() // the write runs before the tensor is sent
	require.NoError(t, <-done)
	require.NoError(t, op.Wait(testContext(t)))

	for _, b := range []device.Buffer{first, third} {
		got := make([]byte, 1000)
		require.NoError(t, p.far.Read(got, b))
		require.NoError(t, b.Stream().Synchronize(testContext(t)))
		require.Equal(t, want, got)
	}
	require.NoError(t, consume.Synchronize(testContext(t)))
	got, _ := host.Contiguous()
	require.Equal(t, pattern(50, 6), got)
}

// oneDevice restricts the factory of a channel to one device.
type oneDevice struct {
	channel.Factory
	device device.Device
}

func (f oneDevice) DeviceDescriptors() map[device.Device]string {
	return map[device.Device]string{f.device: f.Factory.DeviceDescriptors()[f.device]}
}

// TestChosenDeviceDecidesTheChannel checks that if the receiver chooses the device of a tensor, the
// sender uses the channel to that device.
func TestChosenDeviceDecidesTheChannel(t *testing.T) {
	first := device.Device{Kind: npu.Name}
	for _, path := range []path{memPath(), nativePath()} {
		t.Run(string(path.dialect), func(t *testing.T) {
			near, far := npu.NewKind(), npu.NewKind()
			t.Cleanup(near.Close)
			t.Cleanup(far.Close)
			with := func(kind *delayed.Kind) func(*pipe.Options) {
				f := npu.New(kind, basic.New())
				return func(o *pipe.Options) {
					o.Channels = []pipe.ChannelEntry{
						{Name: "between first devices", Priority: 2, Factory: oneDevice{f, first}},
						{Name: "between others", Priority: 1, Factory: f},
					}
				}
			}
			client, server := connectContexts(t, newContext(t, path, with(near)), newContext(t, path, with(far)), path.url)
			src, _ := alloc(t, near, 0, 100)
			require.NoError(t, near.Write(src, pattern(100, 1)))
			op := client.WriteAsync(testContext(t), &pipe.Message{Tensors: []pipe.Tensor{
				{Buffer: src, TargetDevice: first}, {Buffer: src}, {Buffer: src}, {Buffer: src},
			}})
			in, err := server.Next(testContext(t))
			require.NoError(t, err)
			var a pipe.Allocation
			for _, i := range []int{0, 1, 0, 1} {
				b, _ := alloc(t, far, i, 100)
				a.Tensors = append(a.Tensors, b)
			}
			require.NoError(t, in.Read(testContext(t), a))
			require.NoError(t, op.Wait(testContext(t)))
			for _, b := range a.Tensors {
				got := make([]byte, 100)
				require.NoError(t, far.Read(got, b))
				require.NoError(t, b.Stream().Synchronize(testContext(t)))
				require.Equal(t, pattern(100, 1), got)
			}
			two := pipe.Traffic{Messages: 2, Bytes: 200}
			require.Equal(t, []pipe.ChannelStats{{Name: "between first devices", Sent: two}, {Name: "between others", Sent: two}}, client.Stats().Channels)
			require.Equal(t, []pipe.ChannelStats{{Name: "between first devices", Received: two}, {Name: "between others", Received: two}}, server.Stats().Channels)
		})
	}
}

func TestTargetOfAnotherKind(t *testing.T) {
	p := connectNPUs(t)
	src, _ := alloc(t, p.near, 0, 10)
	err := p.client.Write(testContext(t), &pipe.Message{Tensors: []pipe.Tensor{{Buffer: src, TargetDevice: device.CPU()}}})
	require.ErrorIs(t, err, pipe.ErrNoChannel)

	op := p.client.WriteAsync(testContext(t), &pipe.Message{Tensors: []pipe.Tensor{{Buffer: src}}})
	in, err := p.server.Next(testContext(t))
	require.NoError(t, err)
	err = in.Read(testContext(t), pipe.NewAllocation(in.Descriptor())) // host memory
	require.ErrorIs(t, err, pipe.ErrAllocation)
	require.ErrorIs(t, err, pipe.ErrNoChannel)
	dst, _ := alloc(t, p.far, 1, 10)
	require.NoError(t, in.Read(testContext(t), pipe.Allocation{Tensors: []device.Buffer{dst}}))
	require.NoError(t, op.Wait(testContext(t)))
}

// countedKind counts the allocations on its devices.
type countedKind struct {
	*delayed.Kind
	allocs atomic.Int64
}

func (k *countedKind) Alloc(d device.Device, n int, s device.Stream) (device.Buffer, error) {
	k.allocs.Add(1)
	return k.Kind.Alloc(d, n, s)
}

// notCompatible makes channels that do not implement channel.Compatible.
type notCompatible struct{ channel.Factory }

func (f notCompatible) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	ch, err := f.Factory.New(ctx, link, role)
	return struct{ channel.Channel }{ch}, err
}

// TestDiscardOfDeviceTensors checks in both dialects that unwanted tensors for devices are discarded
// without memory on a device, by Discard and by Close, and that later messages arrive intact.
func TestDiscardOfDeviceTensors(t *testing.T) {
	for _, path := range []path{memPath(), nativePath()} {
		t.Run(string(path.dialect), func(t *testing.T) {
			kind := &countedKind{Kind: npu.NewKind()}
			t.Cleanup(kind.Close)
			client, server := connect(t, path, func(o *pipe.Options) {
				o.Channels = append(o.Channels, pipe.ChannelEntry{Name: npu.Name, Priority: 1, Factory: onlyDevices{npu.New(kind, basic.New())}})
				o.Kinds = []device.Kind{kind}
			})
			src, _ := alloc(t, kind.Kind, 0, large)
			want := pattern(large, 1)
			require.NoError(t, kind.Write(src, want))
			second := device.Device{Kind: npu.Name, Index: 1}
			m := &pipe.Message{Payloads: []pipe.Payload{{Data: pattern(10, 2)}}, Tensors: []pipe.Tensor{
				{Buffer: src, TargetDevice: second}, {Buffer: device.Bytes(want)}, {Buffer: src}, {Buffer: src.Slice(0, 0), TargetDevice: second},
			}}
			var ops []*pipe.WriteOp
			last := &pipe.Message{Tensors: []pipe.Tensor{m.Tensors[0], {Buffer: device.Bytes(want), TargetDevice: device.CPU()}}}
			for _, m := range []*pipe.Message{m, m, m, last} {
				ops = append(ops, client.WriteAsync(testContext(t), m))
			}
			for range 2 {
				require.NoError(t, next(t, server).Discard(testContext(t)))
			}
			in := next(t, server)
			a := pipe.Allocation{Payloads: [][]byte{make([]byte, 10)}}
			for _, n := range []int{large, large, large, 0} {
				b, _ := alloc(t, kind.Kind, 1, n)
				a.Tensors = append(a.Tensors, b)
			}
			got := make([]byte, large)
			a.Tensors[1] = device.Bytes(make([]byte, large))
			require.NoError(t, in.Read(testContext(t), a))
			for _, k := range []int{0, 2} {
				require.NoError(t, kind.Read(got, a.Tensors[k]))
				require.NoError(t, a.Tensors[k].Stream().Synchronize(testContext(t)))
				require.True(t, bytes.Equal(want, got), k)
			}
			next(t, server)
			closed := testwait.Start(client.Close)
			require.NoError(t, server.Close()) // discards the last message
			require.NoError(t, testwait.Finish(t, closed))
			for _, op := range ops {
				require.NoError(t, op.Wait(testContext(t)))
			}
			require.Zero(t, kind.allocs.Load())
		})
	}
}

// TestDiscardIsNotSupported checks that in the compatible dialect Discard of a tensor for a device
// fails with ErrAllocation if its channel cannot discard, and that the message can still be read.
func TestDiscardIsNotSupported(t *testing.T) {
	kind := &countedKind{Kind: npu.NewKind()}
	t.Cleanup(kind.Close)
	client, server := connect(t, memPath(), func(o *pipe.Options) {
		o.Channels = append(o.Channels, pipe.ChannelEntry{Name: npu.Name, Priority: 1, Factory: notCompatible{npu.New(kind, basic.New())}})
		o.Kinds = []device.Kind{kind}
	})
	src, _ := alloc(t, kind.Kind, 0, 10)
	op := client.WriteAsync(testContext(t), &pipe.Message{Tensors: []pipe.Tensor{{Buffer: src, TargetDevice: src.Device()}}})
	in := next(t, server)
	err := in.Discard(testContext(t))
	require.ErrorIs(t, err, pipe.ErrAllocation)
	require.ErrorContains(t, err, "channel npu cannot discard tensors for npu:0")
	require.Zero(t, kind.allocs.Load())
	dst, _ := alloc(t, kind.Kind, 0, 10)
	require.NoError(t, in.Read(testContext(t), pipe.Allocation{Tensors: []device.Buffer{dst}}))
	require.NoError(t, op.Wait(testContext(t)))
}
