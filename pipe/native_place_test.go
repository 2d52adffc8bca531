package pipe_test

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// fromHost lets a channel for devices serve the host, too.
type fromHost struct{ channel.Factory }

func (f fromHost) DeviceDescriptors() map[device.Device]string {
	all := maps.Clone(f.Factory.DeviceDescriptors())
	all[device.CPU()] = "any"
	return all
}

// A small tensor travels inside its message. Read enqueues its way to a device,
// which outlasts the message that was released.
func TestNativeSmallTensorForADevice(t *testing.T) {
	kind := npu.NewKind()
	t.Cleanup(kind.Close)
	client, server := connect(t, nativePath(), func(o *pipe.Options) {
		o.Channels = append(o.Channels, pipe.ChannelEntry{Name: npu.Name, Priority: 1, Factory: fromHost{npu.New(kind, basic.New())}})
		o.Kinds = []device.Kind{kind}
	})
	dst, consume := alloc(t, kind, 0, 1000)
	release := consume.Hold()
	small := func(seed int) *pipe.Message {
		return &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(pattern(1000, seed))}}}
	}
	write(t, client, small(1))
	in := next(t, server)
	require.NoError(t, in.Read(testContext(t), pipe.Allocation{Tensors: []device.Buffer{dst}}))
	in.Release()
	for seed := range 50 {
		write(t, client, small(2+seed))
		in := next(t, server)
		read(t, in)
		in.Release()
	}
	release()
	got := make([]byte, 1000)
	require.NoError(t, kind.Read(got, dst))
	require.NoError(t, consume.Synchronize(testContext(t)))
	require.Equal(t, pattern(1000, 1), got)
}

// Host memory with a stream is written to when the stream has come to it.
func TestNativeSmallTensorForAStream(t *testing.T) {
	kind := npu.NewKind()
	t.Cleanup(kind.Close)
	client, server := connect(t, nativePath())
	_, stream := alloc(t, kind, 0, 1)
	release := stream.Hold()
	memory := make([]byte, 10)
	write(t, client, &pipe.Message{Tensors: []pipe.Tensor{{Buffer: device.Bytes(pattern(10, 1))}}})
	in := next(t, server)
	done := make(chan error, 1)
	go func() {
		done <- in.Read(testContext(t), pipe.Allocation{Tensors: []device.Buffer{device.Bytes(memory).WithStream(stream)}})
	}()
	copy(memory, "the stream") // whose turn it still is
	require.Equal(t, "the stream", string(memory))
	release()
	require.NoError(t, <-done)
	require.Equal(t, pattern(10, 1), memory)
}
