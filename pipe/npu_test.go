package pipe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
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

func connectNPUs(t *testing.T, kinds bool) npuPair {
	p := npuPair{near: npu.NewKind(), far: npu.NewKind()}
	t.Cleanup(p.near.Close)
	t.Cleanup(p.far.Close)
	with := func(kind *delayed.Kind) func(*pipe.Options) {
		return func(o *pipe.Options) {
			o.Channels = append(o.Channels, pipe.ChannelEntry{Name: npu.Name, Priority: 1, Factory: onlyDevices{npu.New(kind, basic.New())}})
			if kinds {
				o.Kinds = []device.Kind{kind}
			}
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
	p := connectNPUs(t, false)
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
	p := connectNPUs(t, false)
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

// TestDiscardOnUnknownDevice checks that in the compatible dialect Discard of a tensor for a device
// needs the device's kind in Options.Kinds, to allocate memory. Without the kind it fails with
// ErrAllocation, and the message can still be read.
func TestDiscardOnUnknownDevice(t *testing.T) {
	for _, kinds := range []bool{true, false} {
		p := connectNPUs(t, kinds)
		src, _ := alloc(t, p.near, 0, 10)
		op := p.client.WriteAsync(testContext(t), &pipe.Message{Tensors: []pipe.Tensor{{Buffer: src, TargetDevice: device.Device{Kind: "npu"}}}})
		in, err := p.server.Next(testContext(t))
		require.NoError(t, err)
		if kinds {
			require.NoError(t, in.Discard(testContext(t)))
			require.NoError(t, op.Wait(testContext(t)))
			continue
		}
		require.ErrorIs(t, in.Discard(testContext(t)), pipe.ErrAllocation)
		dst, _ := alloc(t, p.far, 0, 10)
		require.NoError(t, in.Read(testContext(t), pipe.Allocation{Tensors: []device.Buffer{dst}}))
		require.NoError(t, op.Wait(testContext(t)))
	}
}
