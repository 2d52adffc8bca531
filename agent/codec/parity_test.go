package codec

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// smallViews returns views of main, a matrix of 1,024 by 1,024, with less than half of its elements:
// at several strides and of a few bytes on.
func smallViews(t *testing.T, main *tensor.Tensor) map[string]*tensor.Tensor {
	must := must(t)
	row := must(main.Select(0, 2))
	return map[string]*tensor.Tensor{
		"row":                  row,
		"column":               must(main.Select(1, 2)),
		"part of a row":        must(row.Narrow(0, 1, 3)),
		"element":              must(row.Narrow(0, 1, 1)),
		"every other":          must(row.Slice(0, 0, 1024, 2)),
		"every third":          must(row.Slice(0, 0, 1024, 3)),
		"two, far apart":       must(must(main.Select(1, 7)).Slice(0, 1, 1024, 1000)),
		"two with one between": must(must(row.Narrow(0, 5, 5)).Slice(0, 0, 5, 4)),
		"block":                must(must(main.Narrow(0, 3, 4)).Narrow(1, 1, 5)),
		"nearly the rows":      must(must(main.Narrow(0, 3, 400)).Narrow(1, 1, 1023)),
	}
}

func TestParity(t *testing.T) {
	const n = 1024
	r := NewRegistry()
	parity.Case(t, "cpp/WireSerialization.RecopySparseTensors", func(t *testing.T) {
		main := arange(t, n, n)
		for name, tiny := range smallViews(t, main) {
			require.Equal(t, 4*n*n, tiny.Storage().Len())
			data, tensors := encode(t, r, &tiny)
			require.Len(t, tensors, 1)
			require.Equal(t, tiny.ByteSize(), tensors[0].Buffer.Len(), name)
			require.Less(t, len(data), 256)
			var got *tensor.Tensor
			require.NoError(t, decode(t, r, &got, data, tensors))
			requireSame(t, tiny, got)
		}
	})
	parity.Case(t, "cpp/WireSerialization.CloneSparseTensors", func(t *testing.T) {
		must := must(t)
		big := arange(t, n, n)
		for name, most := range map[string]*tensor.Tensor{
			"all": big, "half of the rows": must(big.Narrow(0, 0, n/2)), "half of the columns": must(big.Narrow(1, 0, n/2+1)),
			"transposed": must(big.Transpose(0, 1)),
		} {
			require.Same(t, big.Storage(), storageOf(t, r, &most), name)
		}
		column := must(big.Select(1, 2))
		require.NotSame(t, big.Storage(), storageOf(t, r, &column), "it is copied")
		s, err := tensor.NewSparse(must(tensor.Zeros(tensor.I64, 2, 0)), must(tensor.Zeros(tensor.F32, 0)), 2, 3)
		require.NoError(t, err)
		data, tensors := encode(t, r, &s)
		var got *tensor.Sparse
		require.NoError(t, decode(t, r, &got, data, tensors))
		require.Equal(t, s.Shape(), got.Shape())
		require.Zero(t, got.Values().Len())
	})
}

// storageOf returns the storage whose memory is sent with the tensor to which ptr points.
func storageOf(t *testing.T, r *Registry, ptr **tensor.Tensor) *tensor.Storage {
	e := NewEncoder(r, Limits{})
	e.Reset(nil)
	require.NoError(t, e.Encode(ptr))
	_, _, err := e.Finish()
	require.NoError(t, err)
	require.Len(t, e.Storages(), 1)
	return e.Storages()[0]
}
