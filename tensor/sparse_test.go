package tensor

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// must returns v, and panics if err is not nil. It is for calls that cannot fail in a test.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestSparse(t *testing.T) {
	indices := must(FromSlice([]int64{
		1, 0, 1, 1, // rows
		2, 0, 2, 0, // columns
	}, 2, 4))
	values := must(FromSlice([]float32{1, 2, 4, 8}, 4))
	s := must(NewSparse(indices, values, 2, 3))
	require.Equal(t, F32, s.DType())
	require.Equal(t, []int{2, 3}, s.Shape())
	require.Equal(t, 4, s.Len())
	require.False(t, s.Coalesced())
	require.Same(t, indices, s.Indices())
	require.Same(t, values, s.Values())

	c := must(s.Coalesce())
	require.True(t, c.Coalesced())
	require.Equal(t, []int64{0, 1, 1, 0, 0, 2}, must(Data[int64](c.Indices())))
	require.Equal(t, []float32{2, 8, 5}, must(Data[float32](c.Values())))
	require.Same(t, c, must(c.Coalesce()))
	require.Equal(t, []float32{1, 2, 4, 8}, must(Data[float32](values)), "the original is untouched")

	for _, x := range []*Sparse{s, c} {
		dense := must(x.ToDense())
		require.Equal(t, []int{2, 3}, dense.Shape())
		require.Equal(t, []float32{2, 0, 0, 8, 0, 5}, must(Data[float32](dense)))
	}
	require.False(t, must(EqualSparse(s, c)))
	again := must(NewSparse(c.Indices(), c.Values(), 2, 3))
	require.True(t, again.Coalesced(), "seen from the indices")
	require.True(t, must(EqualSparse(again, c)))
	wider := must(NewSparse(c.Indices(), c.Values(), 2, 4))
	require.False(t, must(EqualSparse(wider, c)))
}

func TestSparseWithDenseDimensions(t *testing.T) {
	indices := must(FromSlice([]int64{2, 0, 2}, 1, 3))
	values := must(FromSlice([]int32{1, 2, 3, 4, 5, 6}, 3, 2))
	s := must(NewSparse(indices, values, 4, 2))
	c := must(s.Coalesce())
	require.Equal(t, []int{2, 2}, c.Values().Shape())
	require.Equal(t, []int32{3, 4, 6, 8}, must(Data[int32](c.Values())))
	dense := must(s.ToDense())
	require.Equal(t, []int32{3, 4, 0, 0, 6, 8, 0, 0}, must(Data[int32](dense)))
}

// TestSparseOfViews checks that a sparse tensor reads indices and values with their strides if they
// are views.
func TestSparseOfViews(t *testing.T) {
	pairs := must(FromSlice([]int64{0, 1, 1, 0, 1, 1}, 3, 2))
	indices := must(pairs.Transpose(0, 1))
	both := must(FromSlice([]float64{1, -1, 2, -2, 3, -3}, 6))
	values := must(both.Slice(0, 0, 6, 2))
	s := must(NewSparse(indices, values, 2, 2))
	require.True(t, s.Coalesced())
	dense := must(s.ToDense())
	require.Equal(t, []float64{0, 1, 2, 3}, must(Data[float64](dense)))
}

func TestSparseCorners(t *testing.T) {
	for _, c := range []struct {
		name            string
		indices, values []int
		shape           []int
		elements        int
	}{
		{"no values", []int{2, 0}, []int{0}, []int{3, 4}, 12},
		{"no values, no places", []int{1, 0}, []int{0}, []int{0}, 0},
		{"no sparse dimensions", []int{0, 1}, []int{1, 2}, []int{2}, 2},
		{"empty values", []int{1, 2}, []int{2, 0}, []int{3, 0}, 0},
		{"a number", []int{0, 1}, []int{1}, []int{}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			indices := must(Zeros(I64, c.indices...))
			values := must(Zeros(F32, c.values...))
			s := must(NewSparse(indices, values, c.shape...))
			dense := must(s.ToDense())
			require.Equal(t, c.elements, dense.Len())
			require.True(t, must(s.Coalesce()).Coalesced())
		})
	}
}

func TestNewSparseRefuses(t *testing.T) {
	one := must(FromSlice([]int64{5}, 1, 1))
	value := must(FromSlice([]float32{1}, 1))
	var shape *ShapeError
	_, err := NewSparse(value, value, 6)
	require.ErrorAs(t, err, new(*DTypeError))
	_, err = NewSparse(must(one.View(1)), value, 6)
	require.ErrorAs(t, err, &shape)
	_, err = NewSparse(one, value)
	require.ErrorAs(t, err, &shape)
	_, err = NewSparse(one, must(Zeros(F32, 2)), 6)
	require.ErrorAs(t, err, &shape)
	_, err = NewSparse(one, must(Zeros(F32, 1, 3)), 6)
	require.ErrorAs(t, err, &shape)
	_, err = NewSparse(one, value, -6)
	require.ErrorAs(t, err, &shape)
	_, err = NewSparse(one, value, math.MaxInt)
	require.ErrorAs(t, err, &shape)

	for _, index := range []int64{-1, 5, math.MinInt64, math.MaxInt64} {
		at := must(FromSlice([]int64{index}, 1, 1))
		_, err = NewSparse(at, value, 5)
		var typed *IndexError
		require.ErrorAs(t, err, &typed)
		require.Equal(t, 5, typed.Len)
	}
	// A few bytes must not cause reading, or allocation, of terabytes.
	many := must(one.Expand(1, 1<<40))
	_, err = NewSparse(many, must(value.Expand(1<<40)), 6)
	require.ErrorIs(t, err, ErrOverlap)
	wide := must(must(value.View(1, 1)).Expand(1, 1<<40))
	_, err = NewSparse(one, wide, 6, 1<<40)
	require.ErrorIs(t, err, ErrOverlap)
}

// TestSparseChecksIndicesAgain checks that indices that change after NewSparse cause an
// *IndexError, and not an access outside the memory.
func TestSparseChecksIndicesAgain(t *testing.T) {
	indices := must(FromSlice([]int64{1, 0}, 1, 2))
	values := must(FromSlice([]float32{1, 2}, 2))
	s := must(NewSparse(indices, values, 3))
	require.NoError(t, Set[int64](indices, 1<<40, 0, 1))
	_, err := s.ToDense()
	require.ErrorAs(t, err, new(*IndexError))
	_, err = s.Coalesce()
	require.ErrorAs(t, err, new(*IndexError))
}

func TestSumsOfEveryType(t *testing.T) {
	testSum(t, uint8(200), 100, 44)
	testSum(t, int8(100), 100, -56)
	testSum(t, int16(30000), 1, 30001)
	testSum(t, int32(1<<30), -1, 1<<30-1)
	testSum(t, int64(1<<60), 1, 1<<60+1)
	testSum(t, ToFloat16(2048), ToFloat16(1), ToFloat16(2048))
	testSum(t, ToFloat16(2048), ToFloat16(3), ToFloat16(2052))
	testSum(t, ToBFloat16(256), ToBFloat16(1), ToBFloat16(256))
	testSum(t, ToBFloat16(1), ToBFloat16(2), ToBFloat16(3))
	testSum[float32](t, 0.5, 0.25, 0.75)
	testSum(t, 0.5, 1e-16, 0.5+1e-16)
	testSum[complex64](t, 1+2i, 3-1i, 4+1i)
	testSum(t, 1+2i, 3-1i, 4+1i)
}

func testSum[T Element](t *testing.T, a, b, want T) {
	t.Run(DTypeOf[T]().String(), func(t *testing.T) {
		indices := must(FromSlice([]int64{1, 1}, 1, 2))
		values := must(FromSlice([]T{a, b}, 2))
		s := must(NewSparse(indices, values, 2))
		dense := must(s.ToDense())
		var zero T
		require.Equal(t, []T{zero, want}, must(Data[T](dense)))
	})
}

func TestSumOfOneKeepsItsBits(t *testing.T) {
	negative, nan := math.Copysign(0, -1), math.Float64frombits(0x7ff0000000000001)
	indices := must(FromSlice([]int64{1, 0}, 1, 2))
	values := must(FromSlice([]float64{negative, nan}, 2))
	dense := must(must(NewSparse(indices, values, 2)).ToDense())
	got := must(Data[float64](dense))
	require.Equal(t, math.Float64bits(nan), math.Float64bits(got[0]))
	require.Equal(t, math.Float64bits(negative), math.Float64bits(got[1]))
}

func TestBoolsHaveNoSum(t *testing.T) {
	values := must(FromSlice([]bool{true, true}, 2))
	apart := must(FromSlice([]int64{2, 0}, 1, 2))
	dense := must(must(NewSparse(apart, values, 3)).ToDense())
	require.Equal(t, []bool{true, false, true}, must(Data[bool](dense)))
	same := must(FromSlice([]int64{2, 2}, 1, 2))
	s := must(NewSparse(same, values, 3))
	_, err := s.ToDense()
	require.ErrorAs(t, err, new(*DTypeError))
}

func TestCoalesceOfAny(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		shape := rapid.SliceOfN(rapid.IntRange(1, 4), 1, 3).Draw(rt, "shape")
		n := rapid.IntRange(0, 20).Draw(rt, "n")
		places, err := Zeros(I64, len(shape), n)
		require.NoError(rt, err)
		want, err := Zeros(I64, shape...)
		require.NoError(rt, err)
		for k := range n {
			index := make([]int, len(shape))
			for dim, size := range shape {
				index[dim] = rapid.IntRange(0, size-1).Draw(rt, "index")
				require.NoError(rt, Set(places, int64(index[dim]), dim, k))
			}
			old, err := At[int64](want, index...)
			require.NoError(rt, err)
			require.NoError(rt, Set(want, old+int64(k), index...))
		}
		s, err := NewSparse(places, arange(t, n), shape...)
		require.NoError(rt, err)
		c, err := s.Coalesce()
		require.NoError(rt, err)
		checked, err := NewSparse(c.Indices(), c.Values(), shape...)
		require.NoError(rt, err)
		require.True(rt, checked.Coalesced())
		dense, err := c.ToDense()
		require.NoError(rt, err)
		require.Equal(rt, list(t, want), list(t, dense))
	})
}
