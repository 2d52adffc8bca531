package pipe_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// TestProgressOnEveryPath checks that PipeStats.Progress of the receiver grows by the size of each
// payload and tensor that is not inline, on every path. Tensors on the channel xth, which copies
// within one process, do not count. Progress of the sender stays 0.
func TestProgressOnEveryPath(t *testing.T) {
	for _, path := range paths() {
		t.Run(path.name, func(t *testing.T) {
			client, server := connect(t, path)
			const payload, tensor = 5 << 20, 9 << 20
			m := message(1, []int{payload}, []int{tensor}, device.CPU())
			op := client.WriteAsync(t.Context(), m)
			expect(t, server, m)
			require.NoError(t, op.Wait(testContext(t)))
			want := payload + tensor
			if strings.Contains(path.name, "xth") {
				want = payload
			}
			require.EqualValues(t, want, server.Stats().Progress)
			require.Zero(t, client.Stats().Progress)
		})
	}
}

// TestProgressOfDecompressing checks that PipeStats.Progress counts the received compressed bytes
// and, in addition, the bytes that were decompressed.
func TestProgressOfDecompressing(t *testing.T) {
	client, server := connect(t, nativePath())
	m := dataMessage(contents["float32"](4<<20), pipe.CompressionZstd, device.CPU())
	op := client.WriteAsync(t.Context(), m)
	expect(t, server, m)
	require.NoError(t, op.Wait(testContext(t)))
	received := server.Stats().Compression.Received
	require.EqualValues(t, 8<<20, received.Bytes)
	require.Equal(t, received.WireBytes+received.Bytes, server.Stats().Progress)
}

// TestProgressOfASlowTensor checks that while a tensor takes a minute to arrive, PipeStats.Progress
// grows every second. It does not grow while the network is down.
func TestProgressOfASlowTensor(t *testing.T) {
	const rate, size = 1 << 20, 60 << 20
	synctest.Test(t, func(t *testing.T) {
		network := simnet.New(mem.New(mem.NewNetwork()), simnet.Rate(rate))
		path := simulated(network, basic.New())
		client, server := connect(t, path, func(o *pipe.Options) { o.Dialect = pipe.DialectNative })
		op := client.WriteAsync(t.Context(), message(1, nil, []int{size}, device.CPU()))
		in, err := server.Next(t.Context())
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())) }()
		time.Sleep(5 * time.Second)
		for range 50 {
			before := server.Stats().Progress
			time.Sleep(time.Second)
			require.Greater(t, server.Stats().Progress, before)
		}
		for _, l := range network.Links() {
			l.HalfOpen()
		}
		time.Sleep(time.Minute)
		before := server.Stats().Progress
		time.Sleep(time.Hour)
		require.Equal(t, before, server.Stats().Progress)
		for _, l := range network.Links() {
			l.Heal()
		}
		require.NoError(t, <-done)
		require.NoError(t, op.Wait(t.Context()))
		require.EqualValues(t, size, server.Stats().Progress)
	})
}

// TestProgressWithinAFrame checks that in the compatible dialect, where a tensor is one frame,
// PipeStats.Progress grows with each MiB of the frame, before the whole frame has arrived.
func TestProgressWithinAFrame(t *testing.T) {
	const tensors, size = 2, 10 << 20 // the third link
	synctest.Test(t, func(t *testing.T) {
		within := simnet.HalfOpenAt(simnet.WithinFrame(tensors, simnet.Dialled, 1, size-1000))
		network := simnet.New(mem.New(mem.NewNetwork()), within)
		client, server := connect(t, simulated(network, basic.New()))
		op := client.WriteAsync(t.Context(), message(1, nil, []int{size}, device.CPU()))
		in, err := server.Next(t.Context())
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())) }()
		synctest.Wait()
		require.EqualValues(t, 9<<20, server.Stats().Progress)
		network.Links()[tensors].Heal()
		require.NoError(t, <-done)
		require.NoError(t, op.Wait(t.Context()))
		require.EqualValues(t, size, server.Stats().Progress)
	})
}
