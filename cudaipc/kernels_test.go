package cudaipc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// engine returns an engine with the kernels of f.
func (f *fixture) engine() *ops.Engine {
	return &ops.Engine{ByKind: map[string]ops.Kernels{Name: f.Kernels()}}
}

// send returns a copy of the memory of x on the device of s, valid on s, with the layout of x.
func (f *fixture) send(x *tensor.Tensor, s *Stream) *tensor.Tensor {
	f.Helper()
	p, err := x.Storage().Bytes()
	require.NoError(f, err)
	b := f.alloc(len(p), s)
	f.write(b, p)
	storage, err := tensor.NewStorage(b, nil)
	require.NoError(f, err)
	return f.strided(storage, x)
}

// fetch waits for x and returns a copy on the host, with the layout of x.
func (f *fixture) fetch(x *tensor.Tensor) *tensor.Tensor {
	f.Helper()
	b, err := x.Storage().Buffer()
	require.NoError(f, err)
	storage, err := tensor.NewStorage(device.Bytes(f.read(b)), nil)
	require.NoError(f, err)
	return f.strided(storage, x)
}

func (f *fixture) strided(s *tensor.Storage, like *tensor.Tensor) *tensor.Tensor {
	f.Helper()
	out, err := tensor.Strided(s, like.DType(), like.Shape(), like.Strides(), like.Offset())
	require.NoError(f, err)
	return out
}

// values returns the elements of x, a tensor on the host of any dtype but complex ones.
func values(t testing.TB, x *tensor.Tensor) []float64 {
	t.Helper()
	x, err := (&ops.Engine{}).Cast(t.Context(), x, tensor.F64)
	require.NoError(t, err)
	x, err = x.Contiguous()
	require.NoError(t, err)
	out, err := tensor.Data[float64](x)
	require.NoError(t, err)
	return out
}

// requireEqual checks that got, on a device, has the elements of want, on the host.
func (f *fixture) requireEqual(want, got *tensor.Tensor, tolerance float64, name string) {
	f.Helper()
	require.Equal(f, want.Shape(), got.Shape(), name)
	require.Equal(f, want.DType(), got.DType(), name)
	w, g := values(f, want), values(f, f.fetch(got))
	for i := range w {
		require.InDelta(f, w[i], g[i], tolerance*max(1, w[i], -w[i]), "%s: element %d", name, i)
	}
}

// random returns a tensor whose layout is one of layouts.
func random(t testing.TB, r *rand.Rand, d tensor.DType, layout string, shape ...int) *tensor.Tensor {
	t.Helper()
	stored := append([]int{}, shape...)
	last := len(shape) - 1
	switch layout {
	case "transposed":
		stored[0], stored[last] = stored[last], stored[0]
	case "part":
		stored[last] = 2*stored[last] + 3
	case "expanded":
		stored[0] = 1
	}
	n, err := tensor.NumElements(stored)
	require.NoError(t, err)
	data := make([]float64, n)
	for i := range data {
		data[i] = float64(r.IntN(2000)-1000) / 64
	}
	x, err := tensor.FromSlice(data, stored...)
	require.NoError(t, err)
	x, err = (&ops.Engine{}).Cast(t.Context(), x, d)
	require.NoError(t, err)
	switch layout {
	case "transposed":
		x, err = x.Transpose(0, last)
	case "part":
		x, err = x.Slice(last, 1, 1+2*shape[last], 2)
	case "expanded":
		x, err = x.Expand(shape...)
	}
	require.NoError(t, err)
	return x
}

var layouts = []string{"contiguous", "transposed", "part", "expanded"}

type operator func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error)

// Operators on two tensors of equal shape, or on the first of them.
var elementwise = map[string]operator{
	"add": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Add(ctx, x, y, ops.Float(-0.3))
	},
	"sub": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Sub(ctx, x, y, ops.Float(1.7))
	},
	"mul": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Mul(ctx, x, y)
	},
	"div": func(ctx context.Context, e *ops.Engine, x, y *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Div(ctx, x, y)
	},
	"scale": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		return e.MulNumber(ctx, x, ops.Float(0.1))
	},
	"sqrt": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		square, err := e.Mul(ctx, x, x)
		if err != nil {
			return nil, err
		}
		return e.Sqrt(ctx, square)
	},
	"clone": func(ctx context.Context, e *ops.Engine, x, _ *tensor.Tensor) (*tensor.Tensor, error) {
		return e.Contiguous(ctx, x)
	},
}

// nonzero replaces zeros of y, which divides.
func nonzero(t testing.TB, y *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	e := &ops.Engine{}
	square, err := e.Mul(t.Context(), y, y)
	require.NoError(t, err)
	square, err = e.AddNumber(t.Context(), square, ops.Float(0.5), ops.Int(1))
	require.NoError(t, err)
	return square
}

func TestElementwise(t *testing.T) {
	f, r, host := newFixture(t, Options{}), rand.New(rand.NewPCG(1, 2)), &ops.Engine{}
	e, s := f.engine(), f.stream(f.zero)
	ctx := device.WithStream(t.Context(), s)
	for _, d := range []tensor.DType{tensor.F32, tensor.F64} {
		for _, shape := range [][]int{{1}, {7}, {3, 5}, {2, 3, 4}, {300, 3}, {0, 2}, {2, 1, 2, 1, 3}} {
			for _, layout := range layouts {
				x, y := random(t, r, d, layout, shape...), nonzero(t, random(t, r, d, "contiguous", shape...))
				a, b := f.send(x, s), f.send(y, s)
				for name, op := range elementwise {
					name = fmt.Sprint(name, " ", d, " ", shape, " ", layout)
					want, err := op(ctx, host, x, y)
					require.NoError(t, err, name)
					got, err := op(ctx, e, a, b)
					require.NoError(t, err, name)
					f.requireEqual(want, got, 0, name)
				}
			}
		}
	}
}

// Operands of different shapes are broadcast, and the second may be the number.
func TestBroadcast(t *testing.T) {
	f, r, host := newFixture(t, Options{}), rand.New(rand.NewPCG(3, 4)), &ops.Engine{}
	e, s := f.engine(), f.stream(f.zero)
	ctx := device.WithStream(t.Context(), s)
	for _, c := range []struct{ x, y []int }{
		{[]int{3, 4}, []int{4}}, {[]int{4}, []int{3, 4}}, {[]int{3, 1}, []int{1, 4}}, {[]int{2, 3, 4}, []int{3, 1}}, {[]int{2, 2}, []int{1}}, {[]int{0, 3}, []int{3}},
	} {
		x, y := random(t, r, tensor.F32, "contiguous", c.x...), nonzero(t, random(t, r, tensor.F32, "contiguous", c.y...))
		a, b := f.send(x, s), f.send(y, s)
		for _, name := range []string{"add", "sub", "mul", "div"} {
			want, err := elementwise[name](ctx, host, x, y)
			require.NoError(t, err)
			got, err := elementwise[name](ctx, e, a, b)
			require.NoError(t, err)
			f.requireEqual(want, got, 0, fmt.Sprint(name, c))
		}
		want, err := host.DivNumber(ctx, x, ops.Float(3))
		require.NoError(t, err)
		got, err := e.DivNumber(ctx, a, ops.Float(3))
		require.NoError(t, err)
		f.requireEqual(want, got, 0, fmt.Sprint("number", c))
	}
}

// Operators in place change exactly the elements of their destination.
func TestInPlace(t *testing.T) {
	f, r, host := newFixture(t, Options{}), rand.New(rand.NewPCG(5, 6)), &ops.Engine{}
	e, s := f.engine(), f.stream(f.zero)
	ctx := device.WithStream(t.Context(), s)
	for name, op := range map[string]func(e *ops.Engine, x, y *tensor.Tensor) error{
		"add":    func(e *ops.Engine, x, y *tensor.Tensor) error { return e.AddInPlace(ctx, x, y, ops.Float(0.3)) },
		"double": func(e *ops.Engine, x, _ *tensor.Tensor) error { return e.AddInPlace(ctx, x, x, ops.Int(1)) },
		"sub":    func(e *ops.Engine, x, y *tensor.Tensor) error { return e.SubInPlace(ctx, x, y, ops.Int(2)) },
		"mul":    func(e *ops.Engine, x, y *tensor.Tensor) error { return e.MulInPlace(ctx, x, y) },
		"div":    func(e *ops.Engine, x, y *tensor.Tensor) error { return e.DivInPlace(ctx, x, y) },
		"scale":  func(e *ops.Engine, x, _ *tensor.Tensor) error { return e.MulNumberInPlace(ctx, x, ops.Float(0.7)) },
		"fill":   func(e *ops.Engine, x, _ *tensor.Tensor) error { return e.FillInPlace(ctx, x, ops.Float(2.5)) },
		"zero":   func(e *ops.Engine, x, _ *tensor.Tensor) error { return e.ZeroInPlace(ctx, x) },
		"copy":   func(e *ops.Engine, x, y *tensor.Tensor) error { return e.CopyInPlace(ctx, x, y) },
	} {
		for _, layout := range layouts[:3] {
			x, y := random(t, r, tensor.F32, layout, 3, 4), nonzero(t, random(t, r, tensor.F32, "contiguous", 3, 4))
			a, b := f.send(x, s), f.send(y, s)
			require.NoError(t, op(e, a, b), name)
			require.NoError(t, op(host, x, y), name)
			f.requireEqual(whole(t, x), whole(t, a), 0, name+" "+layout)
		}
	}
}

// whole returns all the memory of x as a vector.
func whole(t testing.TB, x *tensor.Tensor) *tensor.Tensor {
	t.Helper()
	out, err := tensor.FromStorage(x.Storage(), x.DType(), x.Storage().Len()/x.DType().Size())
	require.NoError(t, err)
	return out
}

// Tensors of every dtype can be filled and copied, contiguous or not.
func TestFillAndCopy(t *testing.T) {
	f, host := newFixture(t, Options{}), &ops.Engine{}
	e, s := f.engine(), f.stream(f.zero)
	ctx := device.WithStream(t.Context(), s)
	for d := tensor.Bool; d.Valid(); d++ {
		there, err := f.Kernels().Alloc(ctx, f.zero, d, 5, 4)
		require.NoError(t, err)
		require.NoError(t, e.FillInPlace(ctx, there, ops.Int(1)))
		column, err := there.Select(1, 2)
		require.NoError(t, err)
		require.NoError(t, e.ZeroInPlace(ctx, column))
		turned, err := there.Transpose(0, 1)
		require.NoError(t, err)
		copied, err := e.Contiguous(ctx, turned)
		require.NoError(t, err)

		want, err := host.Ones(ctx, d, 4, 5)
		require.NoError(t, err)
		row, err := want.Select(0, 2)
		require.NoError(t, err)
		require.NoError(t, host.ZeroInPlace(ctx, row))
		wantBytes, err := want.Storage().Bytes()
		require.NoError(t, err)
		gotBytes, err := f.fetch(copied).Storage().Bytes()
		require.NoError(t, err)
		require.Equal(t, wantBytes, gotBytes, d.String())
	}
}

func TestSum(t *testing.T) {
	f, r, host := newFixture(t, Options{}), rand.New(rand.NewPCG(7, 8)), &ops.Engine{}
	e, s := f.engine(), f.stream(f.zero)
	ctx := device.WithStream(t.Context(), s)
	for _, d := range []tensor.DType{tensor.F32, tensor.F64} {
		for _, layout := range layouts {
			for _, c := range []struct{ shape, dims []int }{
				{[]int{5}, []int{0}}, {[]int{3, 4}, []int{0}}, {[]int{3, 4}, []int{1}}, {[]int{3, 4}, nil}, {[]int{2, 3, 4}, []int{0, 2}},
				{[]int{2, 3, 4}, []int{1}}, {[]int{2, 1000}, []int{1}}, {[]int{2, 33}, []int{1}}, {[]int{1, 1}, []int{0, 1}}, {[]int{2, 0}, []int{1}}, {[]int{2, 0}, []int{0}},
			} {
				x := random(t, r, d, layout, c.shape...)
				a := f.send(x, s)
				for _, keep := range []bool{false, true} {
					want, err := host.Sum(ctx, x, c.dims, keep, 0)
					require.NoError(t, err)
					got, err := e.Sum(ctx, a, c.dims, keep, 0)
					require.NoError(t, err)
					f.requireEqual(want, got, 1e-6, fmt.Sprint(d, layout, c, keep))
				}
			}
		}
	}
}

func TestMatMul(t *testing.T) {
	f, r, host := newFixture(t, Options{}), rand.New(rand.NewPCG(9, 10)), &ops.Engine{}
	e, s := f.engine(), f.stream(f.zero)
	ctx := device.WithStream(t.Context(), s)
	for _, d := range []tensor.DType{tensor.F32, tensor.F64} {
		for _, layout := range layouts {
			for _, c := range []struct{ x, y []int }{
				{[]int{3, 4}, []int{4, 5}}, {[]int{1, 1}, []int{1, 1}}, {[]int{20, 3}, []int{3, 20}}, {[]int{2, 3, 4}, []int{4, 5}}, {[]int{3, 4}, []int{2, 4, 5}},
				{[]int{2, 1, 3, 4}, []int{3, 4, 2}}, {[]int{3, 0}, []int{0, 2}}, {[]int{2, 3}, []int{3, 0}}, {[]int{4, 2, 2, 3}, []int{4, 2, 3, 2}}, {[]int{4, 2, 3, 0}, []int{4, 2, 0, 2}},
			} {
				x, y := random(t, r, d, layout, c.x...), random(t, r, d, "part", c.y...)
				want, err := host.MatMul(ctx, x, y)
				require.NoError(t, err)
				got, err := e.MatMul(ctx, f.send(x, s), f.send(y, s))
				require.NoError(t, err)
				f.requireEqual(want, got, 1e-5, fmt.Sprint(d, layout, c))
			}
		}
	}
}

// Expanded and transposed matrices are not copied.
func TestMatMulAllocatesTheResultOnly(t *testing.T) {
	f, r := newFixture(t, Options{}), rand.New(rand.NewPCG(11, 12))
	s := f.stream(f.zero)
	ctx := device.WithStream(t.Context(), s)
	x, w := f.send(random(t, r, tensor.F32, "contiguous", 6, 2, 3), s), f.send(random(t, r, tensor.F32, "transposed", 3, 4), s)
	before := f.stats(f.zero)
	_, err := f.engine().MatMul(ctx, x, w)
	require.NoError(t, err)
	require.Equal(t, before.Allocs+1, f.stats(f.zero).Allocs)
}

// Intermediate results are free when the operator returns.
func TestKernelsFreeIntermediateResults(t *testing.T) {
	f, r := newFixture(t, Options{}), rand.New(rand.NewPCG(11, 12))
	s := f.stream(f.zero)
	ctx := device.WithStream(t.Context(), s)
	x := f.send(random(t, r, tensor.F32, "transposed", 6, 3), s)
	before := f.stats(f.zero)
	for range 100 {
		out, err := f.engine().Mul(ctx, x, x)
		require.NoError(t, err)
		out.Release()
		require.NoError(t, f.engine().MulInPlace(ctx, x, x))
	}
	after := f.stats(f.zero)
	require.Equal(t, before.InUse, after.InUse)
	require.Greater(t, after.Allocs, before.Allocs+100)
	runtime.KeepAlive(x)
}
