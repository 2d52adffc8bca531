package ops_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// rowsOf returns the shape [rows, columns] of the rows of a tensor of that shape.
func rowsOf(shape []int) (rows, columns int) {
	rows = 1
	for _, size := range shape[:len(shape)-1] {
		rows *= size
	}
	return rows, shape[len(shape)-1]
}

// matrixOf returns a contiguous copy of the rows of x as a matrix.
func matrixOf(t testing.TB, x *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	rows, columns := rowsOf(x.Shape())
	m, err := tensor.FromSlice(floats(t, x), rows, columns)
	require.NoError(t, err)
	return m
}

var linearShapes = [][]int{{3}, {2, 3}, {5, 2, 3}, {2, 5, 2, 3}, {0, 3}, {2, 0}}

func TestLinear(t *testing.T) {
	s := newSource(t)
	for _, shape := range linearShapes {
		for _, d := range []tensor.DType{tensor.F32, tensor.F64} {
			for _, layout := range layouts {
				for name, e := range engines {
					t.Run(fmt.Sprint(shape, d, layout, name), func(t *testing.T) {
						_, in := rowsOf(shape)
						x, w := s.tensor(d, layout, shape...), s.tensor(d, layout, 4, in)
						want := productOf(t, matrixOf(t, x), transpose(t, w, 0, 1))
						out := append(append([]int(nil), shape[:len(shape)-1]...), 4)

						got, err := e.Linear(t.Context(), x, w, nil)
						require.NoError(t, err)
						requireClose(t, d, out, want, got)

						for _, bias := range []*tensor.Tensor{s.tensor(d, layout, 4), s.tensor(d, layout, 1), s.tensor(d, layout)} {
							got, err = e.Linear(t.Context(), x, w, bias)
							require.NoError(t, err)
							added := append([]float64(nil), want...)
							for i := range added {
								added[i] += floats(t, bias)[i%4%bias.Len()]
							}
							requireClose(t, d, out, added, got)
						}
					})
				}
			}
		}
	}
}

func TestLinearBackward(t *testing.T) {
	s := newSource(t)
	for _, shape := range linearShapes {
		for _, layout := range layouts {
			for name, e := range engines {
				t.Run(fmt.Sprint(shape, layout, name), func(t *testing.T) {
					d := tensor.F64
					_, in := rowsOf(shape)
					out := append(append([]int(nil), shape[:len(shape)-1]...), 4)
					grad, x, w := s.tensor(d, layout, out...), s.tensor(d, layout, shape...), s.tensor(d, layout, 4, in)
					gx, gw, gb, err := e.LinearBackward(t.Context(), grad, x, w, [3]bool{true, true, true})
					require.NoError(t, err)
					g := matrixOf(t, grad)
					requireClose(t, d, shape, productOf(t, g, w), gx)
					requireClose(t, d, []int{4, in}, productOf(t, transpose(t, g, 0, 1), matrixOf(t, x)), gw)
					ones := tensorOf(t, d, func(int) float64 { return 1 }, 1, g.Shape()[0])
					requireClose(t, d, []int{4}, productOf(t, ones, g), gb)
				})
			}
		}
	}
}

// Only the gradients that are needed are computed, from the arguments that they need.
func TestLinearBackwardNeeds(t *testing.T) {
	s := newSource(t)
	grad, x, w := s.tensor(tensor.F32, "contiguous", 2, 4), s.tensor(tensor.F32, "contiguous", 2, 3), s.tensor(tensor.F32, "contiguous", 4, 3)
	e := &ops.Engine{}
	for i := range 8 {
		needs := [3]bool{i&1 != 0, i&2 != 0, i&4 != 0}
		gx, gw, gb, err := e.LinearBackward(t.Context(), grad, x, w, needs)
		require.NoError(t, err)
		require.Equal(t, needs, [3]bool{gx != nil, gw != nil, gb != nil})

		some := [2]*tensor.Tensor{x, w}
		for k := range some {
			if !needs[1-k] {
				some[k] = nil
			}
		}
		x2, w2, b2, err := e.LinearBackward(t.Context(), grad, some[0], some[1], needs)
		require.NoError(t, err)
		for k, pair := range [][2]*tensor.Tensor{{gx, x2}, {gw, w2}, {gb, b2}} {
			if needs[k] {
				equal, err := tensor.Equal(pair[0], pair[1])
				require.NoError(t, err)
				require.True(t, equal)
			}
		}
	}
}

// The sum of the rows is as exact as the dtype, however many there are and whatever their width.
func TestLinearBackwardBiasSum(t *testing.T) {
	e := &ops.Engine{}
	for _, columns := range []int{1, 256, 257, 600} {
		const rows = 3000
		grad := tensorOf(t, tensor.F32, func(i int) float64 { return float64(i%columns) + 0.1 }, rows, columns)
		x, err := tensor.Zeros(tensor.F32, rows, 0)
		require.NoError(t, err)
		w, err := tensor.Zeros(tensor.F32, columns, 0)
		require.NoError(t, err)
		_, _, gb, err := e.LinearBackward(t.Context(), grad, x, w, [3]bool{2: true})
		require.NoError(t, err)
		for j, got := range floats(t, gb) {
			require.InEpsilon(t, rows*float64(float32(float64(j)+0.1)), got, 1e-7)
		}
	}
}

func TestLinearErrors(t *testing.T) {
	e := &ops.Engine{}
	z := func(d tensor.DType, shape ...int) *tensor.Tensor {
		x, err := tensor.Zeros(d, shape...)
		require.NoError(t, err)
		return x
	}
	f := func(shape ...int) *tensor.Tensor { return z(tensor.F32, shape...) }
	_, err := e.Linear(t.Context(), f(2, 3), f(3), nil)
	requireValueError(t, err, "linear: the weight must be a matrix, but it is 1D")
	_, err = e.Linear(t.Context(), f(2, 3), f(4, 3), z(tensor.F64, 4))
	requireValueError(t, err, "expected scalar type Float but found Double")
	_, err = e.Linear(t.Context(), f(2, 3), f(4, 2), nil)
	requireValueError(t, err, "mat1 and mat2 shapes cannot be multiplied (2x3 and 2x4)")
	_, err = e.Linear(t.Context(), f(2, 3), f(4, 3), f(2, 2, 4))
	requireValueError(t, err, "a bias of shape [2 2 4] cannot be added to a product of shape [2 4]")
	var size *ops.SizeError
	_, err = e.Linear(t.Context(), f(2, 3), f(4, 3), f(5))
	require.ErrorAs(t, err, &size)

	all := [3]bool{true, true, true}
	for _, c := range [][3]*tensor.Tensor{
		{f(), f(), f(4, 3)}, {f(4), f(2, 3), f(4, 3)}, {f(2, 4), f(2, 3), f(4)}, {f(2, 4), f(2, 3), f(4, 2)},
		{f(2, 4), f(3, 3), f(4, 3)}, {f(2, 4), f(2, 3), z(tensor.F64, 4, 3)},
		{z(tensor.I64, 2, 4), z(tensor.I64, 2, 3), z(tensor.I64, 4, 3)}, {f(2, 4), nil, f(4, 3)}, {f(2, 4), f(2, 3), nil},
	} {
		var invalid *ops.ValueError
		_, _, _, err = e.LinearBackward(t.Context(), c[0], c[1], c[2], all)
		require.ErrorAs(t, err, &invalid)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, _, err = e.LinearBackward(ctx, f(2, 4), f(2, 3), f(4, 3), all)
	require.ErrorIs(t, err, context.Canceled)
}

// Memory that is not aligned for its dtype is copied first.
func TestLinearUnaligned(t *testing.T) {
	for name, e := range engines {
		x, err := tensor.FromBuffer(device.Bytes(make([]byte, 8*6+1)[1:]), tensor.F64, 2, 3)
		require.NoError(t, err)
		require.NoError(t, tensor.Fill(x, 2.0))
		got, err := e.Linear(t.Context(), x, x, x)
		requireSizeError(t, err)
		require.Nil(t, got)
		bias, err := tensor.FromBuffer(device.Bytes(make([]byte, 8*2+1)[1:]), tensor.F64, 2)
		require.NoError(t, err)
		require.NoError(t, tensor.Fill(bias, 3.0))
		got, err = e.Linear(t.Context(), x, x, bias)
		require.NoError(t, err, name)
		requireData(t, []float64{15, 15, 15, 15}, got)
	}
}

func requireSizeError(t testing.TB, err error) {
	t.Helper()
	var size *ops.SizeError
	require.ErrorAs(t, err, &size)
}
