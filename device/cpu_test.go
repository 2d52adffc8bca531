package device_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

func TestCPUKind(t *testing.T) {
	k := device.NewCPU()
	require.Equal(t, device.KindCPU, k.Name())
	require.NoError(t, k.Viable())
	require.Equal(t, []device.Device{device.CPU()}, k.Devices())

	s, err := k.NewStream(device.CPU())
	require.NoError(t, err)
	require.Nil(t, s)

	for _, n := range []int{0, 1, 1000} {
		b, err := k.Alloc(device.CPU(), n, nil)
		require.NoError(t, err)
		require.Equal(t, n, b.Len())
		require.Equal(t, device.CPU(), b.Device())
		p, ok := b.Contiguous()
		require.True(t, ok)
		require.Len(t, p, n)
	}
}

func TestCPUMisuse(t *testing.T) {
	k := device.NewCPU()
	npu := device.Device{Kind: "npu"}
	four, far := device.Bytes(make([]byte, 4)), device.On(npu, region(4), nil)
	alloc := func(d device.Device, n int, s device.Stream) error {
		_, err := k.Alloc(d, n, s)
		return err
	}
	_, streamErr := k.NewStream(device.Device{Kind: "cpu", Index: 1})
	for _, c := range []struct {
		name string
		err  error
		want error
	}{
		{"alloc elsewhere", alloc(npu, 4, nil), device.ErrDevice},
		{"alloc on second cpu", alloc(device.Device{Kind: "cpu", Index: 1}, 4, nil), device.ErrDevice},
		{"alloc on a stream", alloc(device.CPU(), 4, newStream(npu)), device.ErrStream},
		{"alloc of less than nothing", alloc(device.CPU(), -1, nil), device.ErrSize},
		{"stream elsewhere", streamErr, device.ErrDevice},
		{"copy from device", k.Copy(four, far), device.ErrMemory},
		{"copy to device", k.Copy(far, four), device.ErrMemory},
		{"copy behind a stream", k.Copy(four, four.WithStream(newStream(npu))), device.ErrStream},
		{"copy before a stream", k.Copy(four.WithStream(newStream(npu)), four), device.ErrStream},
	} {
		require.ErrorIs(t, c.err, c.want, c.name)
	}
	var length *device.LengthError
	require.ErrorAs(t, k.Copy(four, device.Bytes(make([]byte, 5))), &length)
	require.Equal(t, device.LengthError{Dst: 4, Src: 5}, *length)
}

// Host memory is copied correctly if the segments of source and destination end at different
// offsets. Empty buffers can be copied.
func TestCopyBetweenSegments(t *testing.T) {
	layouts := [][]int{{}, {4}, {0, 3, 0, 3}, {1, 1, 1}, {8, 1}}
	for _, to := range layouts {
		for _, from := range layouts {
			src, dst := numbered(10), make([]byte, 10)
			err := device.NewCPU().Copy(device.Host(split(dst, to...)...), device.Host(split(src, from...)...))
			require.NoError(t, err)
			require.Equal(t, src, dst, "%v to %v", from, to)
		}
	}
	require.NoError(t, device.CopyHost(device.Bytes(nil), device.Host()))
}

func TestHostCopyInSteps(t *testing.T) {
	src, dst := numbered(10), make([]byte, 10)
	c, err := device.NewHostCopy(device.Host(split(dst, 2, 3)...), device.Host(split(src, 7)...))
	require.NoError(t, err)
	require.True(t, bytes.Equal(dst, make([]byte, 10)), "nothing copied yet")

	for _, step := range []struct{ limit, want, done int }{
		{0, 0, 0}, {1, 1, 1}, {3, 3, 4}, {5, 5, 9}, {5, 1, 10}, {5, 0, 10},
	} {
		require.Equal(t, step.want, c.Step(step.limit))
		require.Equal(t, src[:step.done], dst[:step.done])
		require.Equal(t, make([]byte, 10-step.done), dst[step.done:])
	}
}
