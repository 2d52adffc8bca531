package codec

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// placeable returns the decoder of a message with a matrix, a transposed view of it, and a vector of
// other memory, after Reset; and the storages that its parts need.
func placeable(t *testing.T) (*Decoder, []*tensor.Storage) {
	t.Helper()
	m := arange(t, 2, 3)
	was := []*tensor.Tensor{m, must(t)(m.Transpose(0, 1)), arange(t, 4), m}
	data, tensors := encode(t, NewRegistry(), &was)
	d := NewDecoder(NewRegistry(), Limits{})
	require.NoError(t, d.Reset(data))
	return d, copyStorages(t, tensors)
}

// Views describes the tensors of a message before their memory is there: each once, in the order in
// which they were encoded.
func TestViewDescriptions(t *testing.T) {
	d, _ := placeable(t)
	views, err := d.Views()
	require.NoError(t, err)
	require.Equal(t, []View{
		{DType: tensor.F32, Shape: []int{2, 3}, Strides: []int{3, 1}},
		{DType: tensor.F32, Shape: []int{3, 2}, Strides: []int{1, 3}},
		{DType: tensor.F32, Shape: []int{4}, Strides: []int{1}, Part: 1},
	}, views)
	require.True(t, views[0].IsContiguous())
	require.False(t, views[1].IsContiguous())
	require.True(t, (&View{Shape: []int{2, 0}, Strides: []int{7, 7}}).IsContiguous())
	require.True(t, (&View{Shape: []int{0, 3}, Strides: []int{7, 7}}).IsContiguous(), "as in PyTorch")
}

// Tensors that were placed are decoded to themselves, and their parts need no storage; others are
// views of the storages.
func TestPlace(t *testing.T) {
	d, storages := placeable(t)
	mine := arange(t, 4)
	require.NoError(t, d.Place([]*tensor.Tensor{nil, nil, mine}))
	storages[1] = nil
	require.NoError(t, d.Supply(storages))
	var got []*tensor.Tensor
	require.NoError(t, d.Decode(&got))
	require.NoError(t, d.Finish())
	require.Same(t, mine, got[2])
	requireSame(t, arange(t, 2, 3), got[0])
	require.Same(t, got[0].Storage(), got[1].Storage())
	require.Same(t, got[0], got[3])

	d.Forget()
	fresh, storages := placeable(t)
	storages[1] = nil
	require.ErrorIs(t, fresh.Supply(storages), ErrStorage, "no tensor is placed")
}

// Tensors that do not have the dtypes and shapes of the message cannot be placed, and a part whose
// tensors are not placed needs a storage.
func TestPlaceWhatDoesNotFit(t *testing.T) {
	wrong, err := tensor.Zeros(tensor.F64, 4)
	require.NoError(t, err)
	for name, tensors := range map[string][]*tensor.Tensor{
		"too few": {nil, nil}, "shape": {nil, nil, arange(t, 5)}, "dtype": {nil, nil, wrong},
	} {
		t.Run(name, func(t *testing.T) {
			d, storages := placeable(t)
			require.ErrorIs(t, d.Place(tensors), ErrStorage)
			require.NoError(t, d.Supply(storages))
			var got []*tensor.Tensor
			require.NoError(t, d.Decode(&got), "nothing was placed")
		})
	}
	d, storages := placeable(t)
	require.NoError(t, d.Place([]*tensor.Tensor{arange(t, 2, 3), nil, nil}))
	storages[0] = nil
	require.NoError(t, d.Supply(storages))
	require.ErrorIs(t, d.Decode(new([]*tensor.Tensor)), ErrStorage, "another view of the part is not placed")
}
