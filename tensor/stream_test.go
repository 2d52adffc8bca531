package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

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
