package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// TestDeviceCatDType checks that empty vectors count for the dtype of a concatenation on a device as on the host,
// and that elements which the host would cast for it are an error.
func TestDeviceCatDType(t *testing.T) {
	f := newDeviceFixture(t)
	for _, c := range []struct {
		dtypes []tensor.DType
		sizes  []int
		casts  bool
	}{
		{[]tensor.DType{tensor.F32, tensor.F64}, []int{3, 0}, true},
		{[]tensor.DType{tensor.F64, tensor.F32}, []int{0, 3}, true},
		{[]tensor.DType{tensor.F32, tensor.I64}, []int{3, 0}, false},
		{[]tensor.DType{tensor.F32, tensor.I64, tensor.F32}, []int{3, 0, 2}, false},
		{[]tensor.DType{tensor.F32, tensor.F64}, []int{0, 0}, false},
		{[]tensor.DType{tensor.I64, tensor.F32}, []int{0, 0}, false},
	} {
		var onHost, there []*tensor.Tensor
		for i, d := range c.dtypes {
			x := tensorOf(t, d, func(i int) float64 { return float64(i) }, c.sizes[i])
			onHost, there = append(onHost, x), append(there, f.send(x, f.streams[0]))
		}
		want, err := (&ops.Engine{}).Cat(t.Context(), onHost, 0)
		require.NoError(t, err)
		got, err := f.engine.Cat(t.Context(), there, 0)
		if c.casts {
			var invalid *ops.ValueError
			require.ErrorAs(t, err, &invalid, c)
			require.ErrorContains(t, err, "must be cast to "+want.DType().String())
			continue
		}
		require.NoError(t, err, c)
		require.Equal(t, want.DType(), got.DType(), c)
		require.Equal(t, want.Shape(), got.Shape(), c)
		if want.Len() > 0 {
			requireClose(t, tensor.F32, want.Shape(), floats(t, want), f.fetch(got))
		}
	}
}
