package samehost_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/cudaipc"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// mixedTensors are the devices of the tensors of a message, of which each is sent and received in each
// kind of memory.
var mixedTensors = [4]struct{ from, to device.Device }{
	{gpu(0), gpu(0)},
	{device.CPU(), gpu(0)},
	{gpu(0), device.CPU()},
	{device.CPU(), device.CPU()},
}

// sendMixed sends a message with payloads and mixedTensors, of which the first named ones have a target.
// The receiver chooses the devices of the others.
func (r route) sendMixed(t *testing.T, named int) {
	r.both(t, nil, func(n *node) {
		n.requireMixedRoute()
		s := n.stream(gpu(0))
		want := n.mixedMessage(named)
		if n.Rank == 0 {
			for i := range want.Tensors {
				want.Tensors[i].Buffer = n.onDevice(want.Tensors[i].Buffer, mixedTensors[i].from, s)
			}
			require.NoError(n, n.Write(n.Context(), want))
			return
		}
		in := n.next()
		d := in.Descriptor()
		require.Equal(n, want.Metadata, d.Metadata)
		require.Len(n, d.Payloads, len(want.Payloads))
		require.Len(n, d.Tensors, len(want.Tensors))
		a := pipe.Allocation{}
		for i, p := range d.Payloads {
			require.Equal(n, want.Payloads[i].Metadata, p.Metadata)
			a.Payloads = append(a.Payloads, make([]byte, p.Length))
		}
		for i, got := range d.Tensors {
			require.Equal(n, want.Tensors[i].Metadata, got.Metadata)
			require.Equal(n, mixedTensors[i].from, got.SourceDevice)
			require.Equal(n, want.Tensors[i].TargetDevice, got.TargetDevice)
			require.Equal(n, want.Tensors[i].Buffer.Len(), got.Length)
			into := device.Bytes(make([]byte, got.Length))
			if mixedTensors[i].to != device.CPU() {
				into = n.alloc(got.Length, s)
			}
			a.Tensors = append(a.Tensors, into)
		}
		require.NoError(n, in.Read(n.Context(), a))
		for i, p := range a.Payloads {
			require.Equal(n, want.Payloads[i].Data, p)
		}
		for i, b := range a.Tensors {
			text, _ := want.Tensors[i].Buffer.Contiguous()
			require.Equal(n, string(text), string(n.hostBytes(b)))
		}
	})
}

// requireMixedRoute requires the channel of each pair of devices.
func (n *node) requireMixedRoute() {
	for i, name := range []string{cudaipc.IPCName, cudaipc.BasicName, cudaipc.BasicName, basic.Name} {
		got, _ := n.Plan().Channel(mixedTensors[i].from, mixedTensors[i].to)
		require.Equal(n, name, got, n.Plan())
	}
}

// mixedMessage returns a message in host memory.
func (n *node) mixedMessage(named int) *pipe.Message {
	m := &pipe.Message{Metadata: []byte("metadata")}
	for i := range 2 {
		m.Payloads = append(m.Payloads, pipe.Payload{Data: fmt.Appendf(nil, "payload %d", i), Metadata: fmt.Appendf(nil, "payload metadata %d", i)})
	}
	for i, devices := range mixedTensors {
		t := pipe.Tensor{Buffer: device.Bytes(fmt.Appendf(nil, "the tensor from %v to %v", devices.from, devices.to)), Metadata: fmt.Appendf(nil, "tensor metadata %d", i)}
		if i < named {
			t.TargetDevice = devices.to
		}
		m.Tensors = append(m.Tensors, t)
	}
	return m
}

// onDevice returns b, or a copy of it on d.
func (n *node) onDevice(b device.Buffer, d device.Device, s *cudaipc.Stream) device.Buffer {
	if d == device.CPU() {
		return b
	}
	c := n.alloc(b.Len(), s)
	n.copy(c, b)
	return c
}

// hostBytes returns the bytes of b.
func (n *node) hostBytes(b device.Buffer) []byte {
	if p, ok := b.Contiguous(); ok && b.IsHost() {
		return p
	}
	return n.bytesOf(b)
}
