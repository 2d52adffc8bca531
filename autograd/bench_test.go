package autograd_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops/gonumblas"
)

// sequenceF32 returns a Variable of F32 that requires a gradient, with elements from 0.5 to 1.5.
func sequenceF32(tb testing.TB, shape ...int) *autograd.Variable {
	tb.Helper()
	n, err := tensor.NumElements(shape)
	require.NoError(tb, err)
	data := make([]float32, n)
	for i := range data {
		data[i] = 0.5 + float32(i%97)/96
	}
	t, err := tensor.FromSlice(data, shape...)
	require.NoError(tb, err)
	x, err := autograd.Parameter(t)
	require.NoError(tb, err)
	return x
}

func BenchmarkAdd2x2WithGraph(b *testing.B) {
	ctx := context.Background()
	x, y := sequenceF32(b, 2, 2), sequenceF32(b, 2, 2)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := autograd.Add(ctx, x, y); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAdd2x2WithoutGraph(b *testing.B) {
	ctx := autograd.NoGrad(context.Background())
	x, y := sequenceF32(b, 2, 2), sequenceF32(b, 2, 2)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := autograd.Add(ctx, x, y); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkBackwardChain measures passes through 100 operators in a chain, additions and
// multiplications in turn, and reports the time for each.
func BenchmarkBackwardChain(b *testing.B) {
	const nodes = 100
	ctx := context.Background()
	x, y := sequenceF32(b, 2, 2), sequenceF32(b, 2, 2)
	z, err := autograd.Add(ctx, x, y)
	require.NoError(b, err)
	for i := 1; i < nodes; i++ {
		if i%2 == 0 {
			z, err = autograd.Add(ctx, z, y)
		} else {
			z, err = autograd.Mul(ctx, z, y)
		}
		require.NoError(b, err)
	}
	ones, err := tensor.FromSlice([]float32{1, 1, 1, 1}, 2, 2)
	require.NoError(b, err)
	roots, grads := []*autograd.Variable{z}, autograd.WithGradients(autograd.Dense(ones))
	b.ReportAllocs()
	for b.Loop() {
		if err := autograd.Backward(ctx, roots, grads, autograd.RetainGraph()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/nodes, "ns/node")
}

// recycler is an allocator that uses the memory of a released storage for the next one of its size.
type recycler struct{ free []byte }

func (r *recycler) Alloc(size int) (*tensor.Storage, error) {
	p := r.free
	if r.free = nil; len(p) != size {
		p = make([]byte, size)
	}
	return tensor.NewStorage(device.Bytes(p), func() { r.free = p })
}

// BenchmarkMatMul measures the product of matrices of shapes [32,64] and [64,128], with results on the Go
// heap and in recycled memory, beside the bare function of gonum, which writes to the same memory again.
func BenchmarkMatMul(b *testing.B) {
	const m, k, n = 32, 64, 128
	x, y := sequenceF32(b, m, k), sequenceF32(b, k, n)
	for name, ctx := range map[string]context.Context{
		"heap":     context.Background(),
		"recycled": autograd.WithEngine(context.Background(), &ops.Engine{Alloc: &recycler{}, Gemm: gonumblas.Gemm{}}),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				z, err := autograd.MatMul(ctx, x, y)
				if err != nil {
					b.Fatal(err)
				}
				z.Tensor().Release()
			}
		})
	}
	b.Run("gonum", func(b *testing.B) {
		xs, err := tensor.Data[float32](x.Tensor())
		require.NoError(b, err)
		ys, err := tensor.Data[float32](y.Tensor())
		require.NoError(b, err)
		out := make([]float32, m*n)
		for b.Loop() {
			gonum.Implementation{}.Sgemm(blas.NoTrans, blas.NoTrans, m, n, k, 1, xs, k, ys, n, 0, out, n)
		}
	})
}
