package wire

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// ordinary returns a new Descriptor of a message as in a training step: metadata, a payload and two
// tensors.
func ordinary() *Descriptor {
	return &Descriptor{
		Metadata: []byte("step 7"),
		Payloads: []PayloadDescriptor{{Length: 300, Metadata: []byte("arguments")}},
		Tensors: []TensorDescriptor{
			{Length: 1 << 20, SourceDevice: device.CPU(), Metadata: []byte("x")},
			{Length: 1 << 33, SourceDevice: device.Device{Kind: "cuda", Index: 3}, TargetDevice: device.CPU(), Metadata: []byte{}},
		},
	}
}

func TestDescriptorRoundTrip(t *testing.T) {
	want := ordinary()
	var got Descriptor
	require.NoError(t, DecodeDescriptor(want.Append(nil), Limits{}, &got))
	require.Equal(t, want, &got)
}

func TestDescriptorAllocatesNothing(t *testing.T) {
	for _, kind := range []string{"cpu", "cuda", "npu"} {
		m := ordinary()
		m.Tensors[0].SourceDevice.Kind = kind
		m.Tensors[1].TargetDevice.Kind = kind
		reply := DescriptorReply{TargetDevices: []device.Device{m.Tensors[0].SourceDevice}}
		var frame []byte
		var got Descriptor
		var gotReply DescriptorReply
		allocs := testing.AllocsPerRun(100, func() {
			frame = m.Append(frame[:0])
			if err := DecodeDescriptor(frame, Limits{}, &got); err != nil {
				t.Fatal(err)
			}
			frame = reply.Append(frame[:0])
			if err := DecodeDescriptorReply(frame, Limits{}, &gotReply); err != nil {
				t.Fatal(err)
			}
		})
		require.Zero(t, allocs, kind)
		require.Equal(t, m.Tensors[0].SourceDevice, got.Tensors[0].SourceDevice)
		require.Equal(t, reply, gotReply)
	}
}

func BenchmarkDescriptor(b *testing.B) {
	m := ordinary()
	frame := m.Append(nil)
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(frame)))
		p := make([]byte, 0, len(frame))
		for b.Loop() {
			p = m.Append(p[:0])
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(frame)))
		var got Descriptor
		for b.Loop() {
			if err := DecodeDescriptor(frame, Limits{}, &got); err != nil {
				b.Fatal(err)
			}
		}
	})
}
