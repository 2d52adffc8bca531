package tensor

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestViews(t *testing.T) {
	x := arange(t, 2, 3, 4)
	for _, c := range []struct {
		name       string
		view       func() (*Tensor, error)
		shape      []int
		want       []int64
		contiguous bool
	}{
		{"slice", func() (*Tensor, error) { return x.Slice(2, 1, 4, 2) }, []int{2, 3, 2},
			[]int64{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23}, false},
		{"slice with a rest", func() (*Tensor, error) { return x.Slice(2, 0, 4, 3) }, []int{2, 3, 2},
			[]int64{0, 3, 4, 7, 8, 11, 12, 15, 16, 19, 20, 23}, false},
		{"slice of nothing", func() (*Tensor, error) { return x.Slice(0, 2, 2, 1) }, []int{0, 3, 4}, []int64{}, true},
		{"huge step", func() (*Tensor, error) { return x.Slice(0, 1, 2, math.MaxInt) }, []int{1, 3, 4},
			[]int64{12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}, true},
		{"narrow", func() (*Tensor, error) { return x.Narrow(1, 2, 1) }, []int{2, 1, 4},
			[]int64{8, 9, 10, 11, 20, 21, 22, 23}, false},
		{"narrow in front", func() (*Tensor, error) { return x.Narrow(0, 0, 1) }, []int{1, 3, 4},
			[]int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, true},
		{"select", func() (*Tensor, error) { return x.Select(1, 1) }, []int{2, 4},
			[]int64{4, 5, 6, 7, 16, 17, 18, 19}, false},
		{"transpose", func() (*Tensor, error) { return x.Transpose(0, 2) }, []int{4, 3, 2},
			[]int64{0, 12, 4, 16, 8, 20, 1, 13, 5, 17, 9, 21, 2, 14, 6, 18, 10, 22, 3, 15, 7, 19, 11, 23}, false},
		{"transpose with itself", func() (*Tensor, error) { return x.Transpose(1, 1) }, []int{2, 3, 4}, list(t, x), true},
		{"permute", func() (*Tensor, error) { return x.Permute(1, 2, 0) }, []int{3, 4, 2},
			[]int64{0, 12, 1, 13, 2, 14, 3, 15, 4, 16, 5, 17, 6, 18, 7, 19, 8, 20, 9, 21, 10, 22, 11, 23}, false},
		{"unsqueeze", func() (*Tensor, error) { return x.Unsqueeze(3) }, []int{2, 3, 4, 1}, list(t, x), true},
		{"view", func() (*Tensor, error) { return x.View(4, 3, 1, 2) }, []int{4, 3, 1, 2}, list(t, x), true},
		{"reshape", func() (*Tensor, error) { return x.Reshape(24) }, []int{24}, list(t, x), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := c.view()
			require.NoError(t, err)
			require.Equal(t, c.shape, v.Shape())
			require.Equal(t, c.want, list(t, v))
			require.Equal(t, c.contiguous, v.IsContiguous())
			require.Same(t, x.Storage(), v.Storage(), "a view does not copy")
			packed, err := v.Contiguous()
			require.NoError(t, err)
			require.Equal(t, c.want, list(t, packed))
			require.True(t, packed.IsContiguous())
			require.Equal(t, c.contiguous, packed == v)
			requireDescribed(t, v)
		})
	}
}

// requireDescribed requires that shape, strides and offset describe v completely: Strided with
// these must return the same elements. A program needs that in order to send v over a pipe.
func requireDescribed(t *testing.T, v *Tensor) {
	t.Helper()
	again, err := Strided(v.Storage(), v.DType(), v.Shape(), v.Strides(), v.Offset())
	require.NoError(t, err)
	require.Equal(t, list(t, v), list(t, again))
}

func TestExpand(t *testing.T) {
	x := arange(t, 3, 1)
	v, err := x.Expand(2, 3, 2)
	require.NoError(t, err)
	require.Equal(t, []int64{0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2}, list(t, v))
	require.Equal(t, []int{0, 1, 0}, v.Strides())
	require.ErrorIs(t, v.CopyFrom(v), ErrOverlap)
	require.ErrorIs(t, Fill[int64](v, 1), ErrOverlap)
	c, err := v.Clone()
	require.NoError(t, err)
	require.NoError(t, Fill[int64](c, 7))
	require.Equal(t, []int64{0, 1, 2}, list(t, x))

	none, err := x.Expand(0, 3, 5)
	require.NoError(t, err)
	require.Empty(t, list(t, none))
	require.NoError(t, none.CopyFrom(none))
	huge, err := x.Expand(1<<30, 3, 1<<20)
	require.NoError(t, err, "repeating takes no memory")
	last, err := At[int64](huge, 1<<30-1, 2, 1<<20-1)
	require.NoError(t, err)
	require.EqualValues(t, 2, last)
}

func TestViewsRefuse(t *testing.T) {
	x := arange(t, 2, 3)
	for name, call := range map[string]func() (*Tensor, error){
		"slice dim":         func() (*Tensor, error) { return x.Slice(2, 0, 1, 1) },
		"slice dim -1":      func() (*Tensor, error) { return x.Slice(-1, 0, 1, 1) },
		"slice start":       func() (*Tensor, error) { return x.Slice(0, -1, 1, 1) },
		"slice behind stop": func() (*Tensor, error) { return x.Slice(0, 2, 1, 1) },
		"slice stop":        func() (*Tensor, error) { return x.Slice(0, 0, 3, 1) },
		"slice step":        func() (*Tensor, error) { return x.Slice(0, 0, 1, 0) },
		"slice backwards":   func() (*Tensor, error) { return x.Slice(0, 0, 1, -1) },
		"narrow dim":        func() (*Tensor, error) { return x.Narrow(5, 0, 1) },
		"narrow start":      func() (*Tensor, error) { return x.Narrow(0, 3, 0) },
		"narrow length":     func() (*Tensor, error) { return x.Narrow(0, 1, 2) },
		"narrow overflow":   func() (*Tensor, error) { return x.Narrow(0, 1, math.MaxInt) },
		"narrow backwards":  func() (*Tensor, error) { return x.Narrow(0, 1, -1) },
		"select dim":        func() (*Tensor, error) { return x.Select(2, 0) },
		"select index":      func() (*Tensor, error) { return x.Select(0, 2) },
		"transpose":         func() (*Tensor, error) { return x.Transpose(0, 2) },
		"permute dim":       func() (*Tensor, error) { return x.Permute(0, 2) },
		"unsqueeze":         func() (*Tensor, error) { return x.Unsqueeze(3) },
	} {
		_, err := call()
		require.ErrorAs(t, err, new(*IndexError), name)
	}
	for name, call := range map[string]func() (*Tensor, error){
		"permute twice":    func() (*Tensor, error) { return x.Permute(1, 1) },
		"permute too few":  func() (*Tensor, error) { return x.Permute(0) },
		"expand less":      func() (*Tensor, error) { return x.Expand(3) },
		"expand other":     func() (*Tensor, error) { return x.Expand(4, 3) },
		"expand negative":  func() (*Tensor, error) { return x.Expand(-1, 2, 3) },
		"expand too much":  func() (*Tensor, error) { return x.Expand(math.MaxInt, 2, 3) },
		"expand overlong":  func() (*Tensor, error) { return x.Expand(overlong()...) },
		"view other":       func() (*Tensor, error) { return x.View(5) },
		"view negative":    func() (*Tensor, error) { return x.View(-2, -3) },
		"reshape other":    func() (*Tensor, error) { return x.Reshape(7) },
		"reshape overlong": func() (*Tensor, error) { return x.Reshape(overlong()...) },
	} {
		_, err := call()
		require.ErrorAs(t, err, new(*ShapeError), name)
	}
	deep, err := Scalar[int64](1).Expand(overlong()[1:]...)
	require.NoError(t, err)
	_, err = deep.Unsqueeze(0)
	require.ErrorAs(t, err, new(*ShapeError))
}

func TestReshapeCopiesWhereItMust(t *testing.T) {
	x := arange(t, 2, 3)
	turned, err := x.Transpose(0, 1)
	require.NoError(t, err)
	_, err = turned.View(6)
	require.ErrorIs(t, err, ErrNotContiguous)
	flat, err := turned.Reshape(6)
	require.NoError(t, err)
	require.Equal(t, []int64{0, 3, 1, 4, 2, 5}, list(t, flat))
	require.NotSame(t, x.Storage(), flat.Storage())

	split, err := turned.View(3, 1, 2, 1)
	require.NoError(t, err, "dimensions of size 1 are always possible")
	require.Equal(t, []int64{0, 3, 1, 4, 2, 5}, list(t, split))
}

// TestViewsOfNothing checks that all views of a tensor without elements succeed and have no
// elements, whatever the offset and the strides are.
func TestViewsOfNothing(t *testing.T) {
	s, err := Heap{}.Alloc(16)
	require.NoError(t, err)
	x, err := Strided(s, I64, []int{5, 0}, []int{1 << 40, 1}, 2)
	require.NoError(t, err)
	wide, err := Strided(s, I64, []int{5, 0}, []int{math.MaxInt, 1}, 0)
	require.NoError(t, err)
	for name, call := range map[string]func() (*Tensor, error){
		"slice":   func() (*Tensor, error) { return x.Slice(0, 4, 5, 1) },
		"steps":   func() (*Tensor, error) { return x.Slice(0, 0, 5, 1<<23) },
		"stride":  func() (*Tensor, error) { return wide.Slice(0, 0, 5, 2) },
		"select":  func() (*Tensor, error) { return x.Select(0, 4) },
		"reshape": func() (*Tensor, error) { return x.Reshape(3, 0, 7) },
		"clone":   func() (*Tensor, error) { return x.Clone() },
		"expand":  func() (*Tensor, error) { return x.Expand(9, 5, 0) },
	} {
		v, err := call()
		require.NoError(t, err, name)
		require.Empty(t, list(t, v), name)
		requireDescribed(t, v)
		buf, err := v.Buffer()
		require.NoError(t, err, name)
		require.Zero(t, buf.Len(), name)
	}
}

// drawView returns a random view of a random I64 tensor, drawn from rt; label begins the names of
// the drawn values. The elements of the viewed tensor are 0, 1, 2, ..., as arange makes them.
func drawView(rt *rapid.T, t *testing.T, label string) *Tensor {
	shape := rapid.SliceOfN(rapid.IntRange(0, 5), 0, 4).Draw(rt, label+" shape")
	x := arange(t, shape...)
	for i := range rapid.IntRange(0, 4).Draw(rt, label+" steps") {
		var err error
		x, err = drawStep(rt, x)
		require.NoError(rt, err, "%s step %d", label, i)
	}
	return x
}

func drawStep(rt *rapid.T, x *Tensor) (*Tensor, error) {
	if x.Rank() == 0 {
		return x.Unsqueeze(0)
	}
	dim := rapid.IntRange(0, x.Rank()-1).Draw(rt, "dim")
	size := x.Shape()[dim]
	switch rapid.IntRange(0, 5).Draw(rt, "kind") {
	case 0:
		start := rapid.IntRange(0, size).Draw(rt, "start")
		stop := rapid.IntRange(start, size).Draw(rt, "stop")
		return x.Slice(dim, start, stop, rapid.IntRange(1, 3).Draw(rt, "step"))
	case 1:
		return x.Transpose(dim, rapid.IntRange(0, x.Rank()-1).Draw(rt, "other"))
	case 2:
		if size == 0 {
			return x, nil
		}
		return x.Select(dim, rapid.IntRange(0, size-1).Draw(rt, "index"))
	case 3:
		return x.Unsqueeze(dim)
	case 4:
		return x.Permute(rapid.Permutation(identity(x.Rank())).Draw(rt, "order")...)
	default:
		shape := append([]int{}, x.Shape()...)
		if size == 1 {
			shape[dim] = rapid.IntRange(0, 4).Draw(rt, "repeat")
		}
		return x.Expand(shape...)
	}
}

func identity(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// TestCopyOfAnyView checks that Clone, Equal, CopyFrom and Reshape of random views give the
// elements that reading them individually gives.
func TestCopyOfAnyView(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		src := drawView(rt, t, "src")
		want := list(t, src)
		clone, err := src.Clone()
		require.NoError(rt, err)
		require.Equal(rt, want, list(t, clone))
		require.True(rt, clone.IsContiguous())
		same, err := Equal(src, clone)
		require.NoError(rt, err)
		require.True(rt, same)

		order := rapid.Permutation(identity(src.Rank())).Draw(rt, "order")
		dst, err := Zeros(I64, permuted(src.Shape(), order)...)
		require.NoError(rt, err)
		dst, err = dst.Permute(inverse(order)...)
		require.NoError(rt, err)
		require.NoError(rt, dst.CopyFrom(src))
		require.Equal(rt, want, list(t, dst))

		flat, err := src.Reshape(src.Len())
		require.NoError(rt, err)
		require.Equal(rt, want, list(t, flat))
	})
}

func permuted(shape, order []int) []int {
	out := make([]int, len(shape))
	for i, dim := range order {
		out[i] = shape[dim]
	}
	return out
}

func inverse(order []int) []int {
	out := make([]int, len(order))
	for i, dim := range order {
		out[dim] = i
	}
	return out
}

// TestViewFindsStrides checks that View of a random view succeeds exactly if there are strides for
// it. It compares View with the definition: whether the elements are at regular distances.
func TestViewFindsStrides(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		src := drawView(rt, t, "src")
		shape := rapid.SampledFrom(foldings(src.Len())).Draw(rt, "shape")
		v, err := src.View(shape...)
		if err == nil {
			require.Equal(rt, list(t, src), list(t, v))
			require.Same(rt, src.Storage(), v.Storage())
			return
		}
		require.ErrorIs(rt, err, ErrNotContiguous)
		require.False(rt, foldable(t, src, shape), "%v strides %v as %v", src, src.Strides(), shape)
	})
}

// foldings returns shapes of n elements: one dimension of size n, and all shapes of three
// dimensions.
func foldings(n int) [][]int {
	out := [][]int{{n}}
	for a := 1; a <= n; a++ {
		for b := 1; a*b <= n; b++ {
			if n%(a*b) == 0 {
				out = append(out, []int{a, b, n / (a * b)})
			}
		}
	}
	return out
}

// foldable reports whether the elements of x are at regular distances along each dimension of
// shape, so that strides can express a view of x in that shape. x must be a view of a tensor of
// arange.
func foldable(t *testing.T, x *Tensor, shape []int) bool {
	places := list(t, x) // element i of arange is at position i
	strides := rowMajor(shape)
	for dim, size := range shape {
		if size < 2 {
			continue
		}
		distance := places[strides[dim]] - places[0]
		for i, p := range places {
			if i/strides[dim]%size > 0 && p-places[i-strides[dim]] != distance {
				return false
			}
		}
	}
	return true
}
