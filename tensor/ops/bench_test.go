package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// benchmark runs f, which must return an error only if the benchmark is wrong.
func benchmark(b *testing.B, bytes int, f func() error) {
	b.SetBytes(int64(bytes))
	b.ReportAllocs()
	for b.Loop() {
		if err := f(); err != nil {
			b.Fatal(err)
		}
	}
}

func zeros(b *testing.B, shape ...int) *tensor.Tensor {
	x, err := tensor.Zeros(tensor.F32, shape...)
	require.NoError(b, err)
	return x
}

// BenchmarkZeros2x2 is what every result of two by two elements costs at least.
func BenchmarkZeros2x2(b *testing.B) {
	shape := []int{2, 2}
	benchmark(b, 16, func() error {
		_, err := tensor.Zeros(tensor.F32, shape...)
		return err
	})
}

func BenchmarkAdd2x2(b *testing.B) {
	e, x, ctx := &ops.Engine{}, zeros(b, 2, 2), b.Context()
	benchmark(b, 48, func() error {
		_, err := e.Add(ctx, x, x, ops.Int(1))
		return err
	})
}

func BenchmarkAdd1000x1000(b *testing.B) {
	e, x, ctx := &ops.Engine{}, zeros(b, 1000, 1000), b.Context()
	benchmark(b, 12e6, func() error {
		_, err := e.Add(ctx, x, x, ops.Int(1))
		return err
	})
}

func BenchmarkAddBias(b *testing.B) {
	e, x, y, ctx := &ops.Engine{}, zeros(b, 32, 128), zeros(b, 128), b.Context()
	benchmark(b, 2*32*128*4, func() error {
		_, err := e.Add(ctx, x, y, ops.Int(1))
		return err
	})
}

func BenchmarkAddColumn(b *testing.B) {
	e, x, y, ctx := &ops.Engine{}, zeros(b, 1000, 1000), zeros(b, 1000, 1), b.Context()
	benchmark(b, 8e6, func() error {
		_, err := e.Add(ctx, x, y, ops.Int(1))
		return err
	})
}

// BenchmarkAddInPlace is a step of SGD on a weight matrix.
func BenchmarkAddInPlace(b *testing.B) {
	e, x, y, ctx := &ops.Engine{}, zeros(b, 64, 128), zeros(b, 64, 128), b.Context()
	benchmark(b, 64*128*12, func() error { return e.AddInPlace(ctx, x, y, ops.Float(-0.1)) })
}

func BenchmarkMulNumber2x2(b *testing.B) {
	e, x, ctx := &ops.Engine{}, zeros(b, 2, 2), b.Context()
	benchmark(b, 32, func() error {
		_, err := e.MulNumber(ctx, x, ops.Float(2))
		return err
	})
}

func BenchmarkSumTo(b *testing.B) {
	e, x, ctx := &ops.Engine{}, zeros(b, 32, 128), b.Context()
	benchmark(b, 32*128*4, func() error {
		_, err := e.SumTo(ctx, x, 128)
		return err
	})
}

func BenchmarkSum(b *testing.B) {
	e, x, ctx := &ops.Engine{}, zeros(b, 1000, 1000), b.Context()
	benchmark(b, 4e6, func() error {
		_, err := e.Sum(ctx, x, nil, false, 0)
		return err
	})
}

func BenchmarkTanh(b *testing.B) {
	e, x, ctx := &ops.Engine{}, zeros(b, 32, 128), b.Context()
	require.NoError(b, e.FillInPlace(ctx, x, ops.Float(0.7)))
	benchmark(b, 2*32*128*4, func() error {
		_, err := e.Tanh(ctx, x)
		return err
	})
}

func BenchmarkRelu(b *testing.B) {
	e, x, ctx := &ops.Engine{}, zeros(b, 32, 128), b.Context()
	benchmark(b, 2*32*128*4, func() error {
		_, err := e.Relu(ctx, x)
		return err
	})
}

func BenchmarkLogSoftmax(b *testing.B) {
	e, x, ctx := &ops.Engine{}, zeros(b, 32, 10), b.Context()
	benchmark(b, 2*32*10*4, func() error {
		_, err := e.LogSoftmax(ctx, x, 1)
		return err
	})
}
