package pipe

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/compress"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// TestCompressionNeedsBothEnds checks that nothing is compressed, in either direction, if one end
// does not support compression, and that the statistics have the reason.
func TestCompressionNeedsBothEnds(t *testing.T) {
	for name, withoutCompression := range map[string]int{"the client": 0, "the server": 1, "neither": 2} {
		t.Run(name+" does not know it", func(t *testing.T) {
			network := mem.NewNetwork()
			var contexts [2]*Context
			for i := range contexts {
				c, err := New(Options{Transports: []TransportEntry{{Name: "mem", Transport: mem.New(network)}}})
				require.NoError(t, err)
				defer c.Close()
				c.noCompression = i == withoutCompression || withoutCompression == 2
				contexts[i] = c
			}
			l, err := contexts[1].Listen(t.Context(), "mem://")
			require.NoError(t, err)
			client, err := contexts[0].Dial(t.Context(), l.URLs()[0])
			require.NoError(t, err)
			server, err := l.Accept(t.Context())
			require.NoError(t, err)
			require.Equal(t, DialectNative, client.Plan().Dialect)
			for _, ends := range [][2]*Pipe{{client, server}, {server, client}} {
				requirePlain(t, ends[0], ends[1])
			}
		})
	}
}

func requirePlain(t *testing.T, from, to *Pipe) {
	t.Helper()
	data := make([]byte, 5000)
	data[17] = 1
	require.NoError(t, from.Write(t.Context(), &Message{Payloads: []Payload{{Data: data, Compression: CompressionS2}}}))
	in, err := to.Next(t.Context())
	require.NoError(t, err)
	a := NewAllocation(in.Descriptor())
	require.NoError(t, in.Read(t.Context(), a))
	require.Equal(t, data, a.Payloads[0])
	want := CompressionStats{Plain: Traffic{Messages: 1, Bytes: 5000}, Refused: "the peer does not support compression"}
	require.Equal(t, want, from.Stats().Compression)
}

// TestStaysOnHost checks that sender and receiver agree on whether a tensor stays on the host. A
// tensor of the CPU without a target does if no channel brings tensors of the CPU to another
// device.
func TestStaysOnHost(t *testing.T) {
	cpu, gpu := device.CPU(), device.Device{Kind: "cuda"}
	onlyHost := []devicePair{{cpu, cpu}, {gpu, gpu}, {gpu, cpu}}
	mixed := append(onlyHost, devicePair{cpu, gpu})
	for _, c := range []struct {
		pairs          []devicePair // from, to
		source, target device.Device
		want           bool
	}{
		{onlyHost, cpu, device.Device{}, true},
		{onlyHost, cpu, cpu, true},
		{onlyHost, gpu, cpu, false},
		{onlyHost, gpu, device.Device{}, false},
		{mixed, cpu, device.Device{}, false},
		{mixed, cpu, cpu, true},
		{mixed, cpu, gpu, false},
	} {
		sender, receiver := &Pipe{channelsByPair: map[devicePair][]sizedChannel{}}, &Pipe{channelsByPair: map[devicePair][]sizedChannel{}}
		for _, pair := range c.pairs {
			sender.channelsByPair[pair] = []sizedChannel{{0, &pipeChannel{}}}
			receiver.channelsByPair[devicePair{pair.remote, pair.local}] = []sizedChannel{{0, &pipeChannel{}}}
		}
		require.Equal(t, c.want, sender.staysOnHost(c.source, c.target, false))
		require.Equal(t, c.want, receiver.staysOnHost(c.source, c.target, true))
		in := &nativeIncoming{Incoming: Incoming{pipe: receiver}, reader: &nativeReader{pipe: &nativePipe{compresses: true}}}
		err := in.checkTensorCodec(&native.Tensor{Codec: compress.S2, Source: c.source, Target: c.target})
		require.Equal(t, c.want, err == nil)
	}
}
