package rref_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// modulo returns a tensor of the numbers 0, 1, 2 and so on modulo n, plus first.
func modulo(t *testing.T, n, first int, shape ...int) *tensor.Tensor {
	x, err := tensor.Zeros(tensor.F32, shape...)
	require.NoError(t, err)
	data, err := tensor.MutableData[float32](x)
	require.NoError(t, err)
	for i := range data {
		data[i] = float32(i%n + first)
	}
	return x
}

func requireData(t *testing.T, x *tensor.Tensor, shape []int, want ...float32) {
	require.Equal(t, shape, x.Shape())
	got, err := tensor.Data[float32](x)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// TestModules compares the modules that are composed of operators with the results of PyTorch.
func TestModules(t *testing.T) {
	e, x := &ops.Engine{}, modulo(t, 7, 0, 2, 2, 4, 4)
	bias, err := tensor.FromSlice([]float32{1, -1}, 2)
	require.NoError(t, err)
	y, err := conv2d(t.Context(), e, x, layer{weight: modulo(t, 5, -2, 2, 2, 3, 3), bias: bias})
	require.NoError(t, err)
	requireData(t, y, []int{2, 2, 2, 2}, -10, 1, 6, -11, -6, 2, -9, 20, 6, -11, 1, -16, -9, 20, 2, 17)
	y, err = maxPool2d(t.Context(), e, x)
	require.NoError(t, err)
	requireData(t, y, []int{2, 2, 2, 2}, 5, 6, 6, 4, 6, 5, 4, 6, 5, 6, 6, 5, 6, 6, 5, 6)
}
