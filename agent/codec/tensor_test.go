package codec

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// arange returns a new F32 tensor of the given shape with the numbers 0, 1, 2 and so on in
// row-major order.
func arange(t testing.TB, shape ...int) *tensor.Tensor {
	t.Helper()
	n, err := tensor.NumElements(shape)
	require.NoError(t, err)
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(i)
	}
	out, err := tensor.FromSlice(values, shape...)
	require.NoError(t, err)
	return out
}

// must returns a function that returns its tensor, and fails the test if its error is not nil.
func must(t testing.TB) func(*tensor.Tensor, error) *tensor.Tensor {
	return func(v *tensor.Tensor, err error) *tensor.Tensor {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

func requireSame(t testing.TB, want, got *tensor.Tensor) {
	t.Helper()
	require.Equal(t, want.String(), got.String())
	same, err := tensor.Equal(want, got)
	require.NoError(t, err)
	require.True(t, same)
}

func TestTensorsAnywhere(t *testing.T) {
	type args struct {
		A    *tensor.Tensor
		List []*tensor.Tensor
		Map  map[string]any
		Deep *args
	}
	a, b := arange(t, 2, 3), tensor.Scalar(int64(7))
	was := args{A: a, List: []*tensor.Tensor{b, nil, a}, Map: map[string]any{"x": a, "y": []*tensor.Tensor{b}}, Deep: &args{A: b}}
	r := NewRegistry()
	data, tensors := encode(t, r, &was)
	require.Len(t, tensors, 2, "each is sent once")
	var got args
	require.NoError(t, decode(t, r, &got, data, tensors))
	requireSame(t, a, got.A)
	requireSame(t, b, got.List[0])
	require.Nil(t, got.List[1])
	require.Same(t, got.A, got.List[2])
	require.Same(t, got.A, got.Map["x"])
	require.Same(t, got.Deep.A, got.Map["y"].([]*tensor.Tensor)[0])
}

func TestDTypes(t *testing.T) {
	r := NewRegistry()
	for d := tensor.Bool; d.Valid(); d++ {
		for _, shape := range [][]int{{}, {0}, {5}, {2, 0, 3}, {1, 2, 1, 3}} {
			was := must(t)(tensor.Zeros(d, shape...))
			requireSame(t, was, roundTrip(t, r, was))
		}
	}
}

// views returns views of m, a matrix of 6 x 8 floats, by name. For each it has the number of bytes
// that are sent, and whether the decoded view has the same strides.
func views(t *testing.T, m *tensor.Tensor) map[string]struct {
	view  *tensor.Tensor
	bytes int
	kept  bool // the strides
} {
	must := must(t)
	transposed := must(m.Transpose(0, 1))
	return map[string]struct {
		view  *tensor.Tensor
		bytes int
		kept  bool
	}{
		"all":              {m, 192, true},
		"rows":             {must(m.Slice(0, 2, 4, 1)), 64, true},
		"row in a middle":  {must(m.Narrow(1, 3, 2)), 168, true},
		"most columns":     {must(m.Narrow(1, 0, 6)), 46 * 4, true},
		"transposed":       {transposed, 192, true},
		"column":           {must(m.Select(1, 3)), 164, true},
		"column of a row":  {must(must(m.Select(0, 3)).Slice(0, 5, 6, 1)), 4, true},
		"scalar":           {must(must(m.Select(0, 1)).Select(0, 4)), 4, true},
		"expanded":         {must(must(m.Narrow(0, 1, 1)).Expand(100, 8)), 32, true},
		"nothing":          {must(m.Narrow(0, 3, 0)), 0, false},
		"every other":      {must(must(m.Select(0, 0)).Slice(0, 0, 8, 2)), 28, true},
		"every third":      {must(must(m.View(48)).Slice(0, 0, 48, 3)), 46 * 4, true},
		"permuted, narrow": {must(transposed.Narrow(1, 1, 3)), 96, true},
	}
}

func TestViews(t *testing.T) {
	r := NewRegistry()
	m := arange(t, 6, 8)
	for name, c := range views(t, m) {
		t.Run(name, func(t *testing.T) {
			data, tensors := encode(t, r, &c.view)
			require.Len(t, tensors, 1)
			require.Equal(t, c.bytes, tensors[0].Buffer.Len())
			var got *tensor.Tensor
			require.NoError(t, decode(t, r, &got, data, tensors))
			requireSame(t, c.view, got)
			if c.kept {
				require.Equal(t, c.view.Strides(), got.Strides())
			} else {
				require.True(t, got.IsContiguous())
			}
		})
	}
}

// TestSpreadViews checks that a view of less than half of a storage of 8 KiB or more is sent as a
// contiguous copy; any other view is sent with the bytes between its elements.
func TestSpreadViews(t *testing.T) {
	r := NewRegistry()
	must := must(t)
	m := arange(t, 65, 64)
	for _, c := range []struct {
		view  *tensor.Tensor
		bytes int
	}{
		{must(m.Narrow(1, 0, 31)), 65 * 31 * 4},
		{must(m.Select(1, 3)), 65 * 4},
		{must(m.Narrow(1, 0, 33)), (64*64 + 33) * 4},
		{must(must(m.Narrow(1, 0, 1)).Narrow(0, 0, 32)), 32 * 4},
		{must(must(m.Narrow(1, 0, 60)).Narrow(0, 0, 30)), 30 * 60 * 4},
		{must(arange(t, 2047).Slice(0, 0, 9, 4)), 9 * 4},
		{must(arange(t, 2048).Slice(0, 0, 9, 4)), 3 * 4},
	} {
		data, tensors := encode(t, r, &c.view)
		require.Len(t, tensors, 1)
		require.Equal(t, c.bytes, tensors[0].Buffer.Len())
		var got *tensor.Tensor
		require.NoError(t, decode(t, r, &got, data, tensors))
		requireSame(t, c.view, got)
		require.Equal(t, c.bytes == c.view.ByteSize(), got.IsContiguous())
	}
}

func TestSharedStorage(t *testing.T) {
	r := NewRegistry()
	m := arange(t, 10, 10)
	must := must(t)
	was := []*tensor.Tensor{must(m.Narrow(0, 1, 4)), must(must(m.Narrow(0, 3, 5)).Transpose(0, 1)), must(m.Select(1, 2))}
	data, tensors := encode(t, r, &was)
	require.Len(t, tensors, 1)
	require.Equal(t, 364, tensors[0].Buffer.Len(), "from the column's first element to its last")

	var got []*tensor.Tensor
	require.NoError(t, decode(t, r, &got, data, tensors))
	for i := range was {
		requireSame(t, was[i], got[i])
		require.Same(t, got[0].Storage(), got[i].Storage())
	}
	require.NoError(t, tensor.Set(got[0], float32(-1), 3, 2)) // row 4 of m
	for i, index := range [][]int{1: {2, 1}, 2: {4}} {
		if index != nil {
			seen, err := tensor.At[float32](got[i], index...)
			require.NoError(t, err)
			require.Equal(t, float32(-1), seen, "tensor %d", i)
		}
	}
}

// TestDistantViews checks that views of one storage that are far apart are sent without the bytes
// between them. Overlapping views are sent once and share a storage after decoding.
func TestDistantViews(t *testing.T) {
	r := NewRegistry()
	m := arange(t, 1000, 10)
	must := must(t)
	was := []*tensor.Tensor{must(m.Narrow(0, 990, 2)), must(m.Narrow(0, 0, 2)), must(m.Narrow(0, 1, 2)), must(m.Narrow(0, 500, 0))}
	data, tensors := encode(t, r, &was)
	require.Len(t, tensors, 2, "a view without elements needs no part")
	total := 0
	for _, part := range tensors {
		total += part.Buffer.Len()
	}
	require.Equal(t, 120+80, total)
	var got []*tensor.Tensor
	require.NoError(t, decode(t, r, &got, data, tensors))
	for i := range was {
		requireSame(t, was[i], got[i])
	}
	require.Same(t, got[1].Storage(), got[2].Storage())
}

// TestMixedDTypes checks that views of one storage that have different dtypes and offsets share a
// storage after decoding and keep their elements.
func TestMixedDTypes(t *testing.T) {
	s, err := tensor.Heap{}.Alloc(96)
	require.NoError(t, err)
	must := must(t)
	was := []*tensor.Tensor{
		must(tensor.Strided(s, tensor.U8, []int{50}, []int{1}, 21)),
		must(tensor.Strided(s, tensor.C128, []int{3}, []int{1}, 2)),
		must(tensor.Strided(s, tensor.I16, []int{20}, []int{1}, 13)),
	}
	require.NoError(t, tensor.Fill(was[1], 3+4i))
	_, tensors := encode(t, NewRegistry(), &was)
	require.Equal(t, 80-16, tensors[0].Buffer.Len(), "from a multiple of the largest element size")
	got := roundTrip(t, NewRegistry(), was)
	for i := range was {
		requireSame(t, was[i], got[i])
		require.Same(t, got[0].Storage(), got[i].Storage())
	}
}

func TestManyTensors(t *testing.T) {
	m := arange(t, 100, 16)
	var was []*tensor.Tensor
	for i := range 100 {
		was = append(was, must(t)(m.Select(0, i)), arange(t, i))
	}
	data, tensors := encode(t, NewRegistry(), &was)
	require.Len(t, tensors, 101)
	var got []*tensor.Tensor
	require.NoError(t, decode(t, NewRegistry(), &got, data, tensors))
	for i := range was {
		requireSame(t, was[i], got[i])
	}
}

func TestReleasedTensor(t *testing.T) {
	m := arange(t, 3)
	m.Release()
	if invariants.Enabled {
		e := NewEncoder(NewRegistry(), Limits{})
		e.Reset(nil)
		require.Panics(t, func() { _ = e.Encode(&m) }, "every use of released memory panics in such builds")
		return
	}
	err := encodeError(t, NewRegistry(), &struct{ A []*tensor.Tensor }{[]*tensor.Tensor{nil, m}})
	require.ErrorIs(t, err, tensor.ErrReleased)
	require.ErrorContains(t, err, ".A[1]")
}

// remote is memory that the host cannot address.
type remote int

func (r remote) Len() int { return int(r) }

func TestDevices(t *testing.T) {
	gpu := device.Device{Kind: "npu", Index: 3}
	s, err := tensor.NewStorage(device.On(gpu, remote(400), nil), nil)
	require.NoError(t, err)
	m := must(t)(tensor.FromStorage(s, tensor.F32, 10, 10))
	was := []*tensor.Tensor{arange(t, 2), must(t)(m.Select(1, 3))}
	r := NewRegistry()
	data, tensors := encode(t, r, &was)
	require.Len(t, tensors, 2)
	require.Equal(t, gpu, tensors[1].Buffer.Device())

	d := NewDecoder(r, Limits{})
	require.NoError(t, d.Reset(data))
	require.Equal(t, []Part{{8, device.CPU()}, {364, gpu}}, d.Parts(), "the host cannot gather a column")

	host, err := tensor.Heap{}.Alloc(8)
	require.NoError(t, err)
	there, err := tensor.NewStorage(device.On(gpu, remote(364), nil), nil)
	require.NoError(t, err)
	require.ErrorIs(t, d.Supply(nil), ErrStorage)
	require.ErrorIs(t, d.Supply([]*tensor.Storage{host, nil}), ErrStorage)
	require.ErrorIs(t, d.Supply([]*tensor.Storage{there, host}), ErrStorage)
	require.NoError(t, d.Supply([]*tensor.Storage{host, there}))
	var got []*tensor.Tensor
	require.NoError(t, d.Decode(&got))
	require.NoError(t, d.Finish())
	require.Equal(t, gpu, got[1].Device())
	require.Equal(t, was[1].Strides(), got[1].Strides())
}

func TestNoSupply(t *testing.T) {
	data, _ := encode(t, NewRegistry(), ptr(arange(t, 2)))
	d := NewDecoder(NewRegistry(), Limits{})
	require.NoError(t, d.Reset(data))
	require.ErrorIs(t, d.Decode(new(*tensor.Tensor)), ErrStorage)
}

func TestSparse(t *testing.T) {
	indices := must(t)(tensor.FromSlice([]int64{0, 2, 1, 0}, 2, 2))
	values := arange(t, 2, 5)
	s, err := tensor.NewSparse(indices, values, 3, 2, 5)
	require.NoError(t, err)
	type args struct {
		A, B *tensor.Sparse
		C    any
		None *tensor.Sparse
		V    *tensor.Tensor
	}
	got := roundTrip(t, NewRegistry(), args{A: s, B: s, C: s, V: values})
	same, err := tensor.EqualSparse(s, got.A)
	require.NoError(t, err)
	require.True(t, same)
	require.Same(t, got.A, got.B)
	require.Same(t, got.A, got.C)
	require.Nil(t, got.None)
	require.Same(t, got.A.Values(), got.V)
}

func TestExpandedLimit(t *testing.T) {
	wide := must(t)(tensor.Scalar(float64(1)).Expand(1<<20, 1<<5))
	data, tensors := encode(t, NewRegistry(), &wide)
	require.Equal(t, 8, tensors[0].Buffer.Len())
	var got *tensor.Tensor
	require.NoError(t, decode(t, NewRegistry(), &got, data, tensors))
	require.Equal(t, wide.Shape(), got.Shape())

	d := NewDecoder(NewRegistry(), Limits{ExpandedBytes: 1 << 20})
	require.NoError(t, d.Reset(data))
	require.NoError(t, d.Supply(copyStorages(t, tensors)))
	require.ErrorIs(t, d.Decode(&got), ErrLimit)
	for range 2 {
		view, err := d.view(0)
		require.ErrorIs(t, err, ErrLimit, "a tensor that failed is not kept")
		require.Nil(t, view)
	}

	vast := must(t)(tensor.Scalar(float64(1)).Expand(math.MaxInt32, 1<<29))
	data, tensors = encode(t, NewRegistry(), &vast)
	require.ErrorIs(t, decode(t, NewRegistry(), &got, data, tensors), ErrLimit)
}

// TestStoragesOfParts checks that Storages returns for each part the storage that the part keeps
// reachable: that of the tensor, or that of the copy if the view was sent as a contiguous copy.
func TestStoragesOfParts(t *testing.T) {
	get := must(t)
	a, b := arange(t, 256, 256), arange(t, 4)
	column := get(arange(t, 256, 256).Slice(1, 0, 1, 1))
	e := NewEncoder(NewRegistry(), Limits{})
	require.NoError(t, e.Encode(&[]*tensor.Tensor{
		get(a.Slice(0, 0, 2, 1)), get(a.Slice(0, 200, 202, 1)), b, column, get(b.Slice(0, 1, 2, 1)),
	}))
	_, parts, err := e.Finish()
	require.NoError(t, err)
	storages := e.Storages()
	require.Len(t, parts, 4)
	require.Len(t, storages, 4)
	require.Same(t, a.Storage(), storages[0])
	require.Same(t, a.Storage(), storages[1])
	require.Same(t, b.Storage(), storages[2])
	require.NotSame(t, column.Storage(), storages[3])
	require.Equal(t, 256*4, storages[3].Len())
	e.Reset(nil)
	require.Empty(t, e.Storages())
}
