package tensor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// TestOverlap checks which pairs of tensors may share memory: views of one storage, and tensors of
// two storages in the same memory.
func TestOverlap(t *testing.T) {
	p := make([]byte, 24)
	whole, err := tensor.FromBuffer(device.Bytes(p), tensor.I64, 3)
	require.NoError(t, err)
	first, err := whole.Narrow(0, 0, 1)
	require.NoError(t, err)
	last, err := whole.Narrow(0, 1, 2)
	require.NoError(t, err)
	none, err := whole.Narrow(0, 1, 0)
	require.NoError(t, err)
	other, err := tensor.FromBuffer(device.Bytes(p[8:]), tensor.I64, 2)
	require.NoError(t, err)
	for _, c := range []struct {
		a, b *tensor.Tensor
		want bool
	}{
		{whole, whole, true}, {whole, last, true}, {first, last, false}, {whole, none, false},
		{other, last, true}, {first, other, false}, {none, none, false},
	} {
		got, err := tensor.Overlap(c.a, c.b)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
		got, err = tensor.Overlap(c.b, c.a)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	expanded, err := first.Expand(2)
	require.NoError(t, err)
	require.True(t, tensor.SelfOverlaps(expanded))
	require.False(t, tensor.SelfOverlaps(last))
	turned, err := tensor.Zeros(tensor.F32, 2, 3)
	require.NoError(t, err)
	turned, err = turned.Transpose(0, 1)
	require.NoError(t, err)
	require.False(t, tensor.SelfOverlaps(turned))
}
