package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// The indices of a sparse tensor on a device are not read.
func TestSparseOnDevice(t *testing.T) {
	k := delayed.New("npu", 1)
	defer k.Close()
	s, err := k.NewStream(k.Devices()[0])
	require.NoError(t, err)
	release := s.(*delayed.Stream).Hold()
	defer release()
	place := func(bytes int, d tensor.DType, dims ...int) *tensor.Tensor {
		buf, err := k.Alloc(k.Devices()[0], bytes, s)
		require.NoError(t, err)
		x, err := tensor.FromBuffer(buf, d, dims...)
		require.NoError(t, err)
		return x
	}
	x, err := tensor.NewSparse(place(16, tensor.I64, 1, 2), place(8, tensor.F32, 2), 5)
	require.NoError(t, err)
	require.False(t, x.Coalesced())
	require.Equal(t, k.Devices()[0], x.Device())
	for _, read := range []func() error{
		func() error { _, err := x.ToDense(); return err },
		func() error { _, err := x.Coalesce(); return err },
	} {
		var elsewhere *tensor.DeviceError
		require.ErrorAs(t, read(), &elsewhere)
	}
	_, err = tensor.NewSparse(place(16, tensor.I64, 1, 2), place(8, tensor.F32, 1, 2), 5)
	require.ErrorAs(t, err, new(*tensor.ShapeError))

	// In host memory that is valid on a stream, too: the bytes may still come.
	host, err := tensor.FromBuffer(device.Bytes(make([]byte, 16)).WithStream(s), tensor.I64, 1, 2)
	require.NoError(t, err)
	_, err = tensor.NewSparse(host, place(8, tensor.F32, 2), 5)
	require.NoError(t, err)
}

// After SetStream the memory, also of views, is valid on the new stream, which waits for the work of the old one.
func TestSetStream(t *testing.T) {
	k := delayed.New("npu", 1)
	defer k.Close()
	before, err := k.NewStream(k.Devices()[0])
	require.NoError(t, err)
	after, err := k.NewStream(k.Devices()[0])
	require.NoError(t, err)
	buf, err := k.Alloc(k.Devices()[0], 4, before)
	require.NoError(t, err)
	x, err := tensor.FromBuffer(buf, tensor.U8, 4)
	require.NoError(t, err)
	view, err := x.Narrow(0, 1, 2)
	require.NoError(t, err)
	release := before.(*delayed.Stream).Hold()
	require.NoError(t, k.Write(buf, []byte("late")))

	require.NoError(t, x.Storage().SetStream(after))
	part, err := view.Buffer()
	require.NoError(t, err)
	require.Same(t, after, part.Stream())
	got := make([]byte, 2)
	require.NoError(t, k.Read(got, part))
	release()
	require.NoError(t, after.Synchronize(t.Context()))
	require.Equal(t, "at", string(got))
	require.NoError(t, x.Storage().SetStream(after))

	k.Close()
	require.ErrorIs(t, x.Storage().SetStream(before), delayed.ErrClosed)
	part, err = view.Buffer()
	require.NoError(t, err)
	require.Same(t, after, part.Stream())
}
