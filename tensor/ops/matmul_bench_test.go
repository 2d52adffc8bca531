package ops_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops/gonumblas"
)

// gemms are the ways to multiply matrices of F32 and F64.
var gemms = map[string]ops.Gemm{"loops": nil, "gonum": gonumblas.Gemm{}}

func BenchmarkMatMul(b *testing.B) {
	s := newSource(b)
	for _, size := range [][3]int{{2, 2, 2}, {8, 8, 8}, {32, 64, 128}, {32, 128, 10}, {256, 256, 256}} {
		m, k, n := size[0], size[1], size[2]
		x, y := s.tensor(tensor.F32, "contiguous", m, k), s.tensor(tensor.F32, "contiguous", k, n)
		for name, g := range gemms {
			b.Run(fmt.Sprintf("%dx%dx%d/%s", m, k, n, name), func(b *testing.B) {
				e, ctx := &ops.Engine{Gemm: g}, b.Context()
				b.ReportAllocs()
				for b.Loop() {
					_, err := e.MatMul(ctx, x, y)
					require.NoError(b, err)
				}
				b.ReportMetric(2*float64(m*n*k)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
			})
		}
	}
}

// BenchmarkLinear is the layers of a small network, forward and backward.
func BenchmarkLinear(b *testing.B) {
	s := newSource(b)
	for _, size := range [][3]int{{32, 64, 128}, {32, 128, 10}} {
		m, k, n := size[0], size[1], size[2]
		x, w := s.tensor(tensor.F32, "contiguous", m, k), s.tensor(tensor.F32, "contiguous", n, k)
		bias, grad := s.tensor(tensor.F32, "contiguous", n), s.tensor(tensor.F32, "contiguous", m, n)
		for name, g := range gemms {
			e := &ops.Engine{Gemm: g}
			b.Run(fmt.Sprintf("forward/%dx%dx%d/%s", m, k, n, name), func(b *testing.B) {
				b.ReportAllocs()
				ctx := b.Context()
				for b.Loop() {
					_, err := e.Linear(ctx, x, w, bias)
					require.NoError(b, err)
				}
			})
			for part, needs := range map[string][3]bool{"x": {0: true}, "weight": {1: true}, "bias": {2: true}} {
				b.Run(fmt.Sprintf("backward/%dx%dx%d/%s/%s", m, k, n, part, name), func(b *testing.B) {
					b.ReportAllocs()
					ctx := b.Context()
					for b.Loop() {
						_, _, _, err := e.LinearBackward(ctx, grad, x, w, needs)
						require.NoError(b, err)
					}
				})
			}
		}
	}
}

func BenchmarkCrossEntropy(b *testing.B) {
	s := newSource(b)
	x, target := s.tensor(tensor.F32, "contiguous", 32, 10), s.indexTensor(tensor.I64, "contiguous", 10, 32)
	e, ctx, o := &ops.Engine{}, b.Context(), ops.NLLOptions{Reduction: ops.ReductionMean}
	b.ReportAllocs()
	for b.Loop() {
		loss, logSoftmax, total, err := e.CrossEntropy(ctx, x, target, nil, o)
		require.NoError(b, err)
		_, err = e.CrossEntropyBackward(ctx, loss, logSoftmax, target, nil, o, total)
		require.NoError(b, err)
	}
}
