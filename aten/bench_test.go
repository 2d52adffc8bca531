package aten_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

func BenchmarkAdd(b *testing.B) {
	table := aten.Default()
	for _, n := range []int{2, 100, 1000} {
		b.Run(fmt.Sprintf("%dx%d", n, n), func(b *testing.B) {
			x, err := tensor.Zeros(tensor.F32, n, n)
			require.NoError(b, err)
			args := values{x, x}
			b.SetBytes(int64(12 * n * n))
			b.ReportAllocs()
			for b.Loop() {
				_, err := table.Call(b.Context(), "aten::add", args, nil)
				require.NoError(b, err)
			}
		})
	}
}

func BenchmarkAddRow(b *testing.B) {
	x, y := must(tensor.Zeros(tensor.F32, 1000, 1000)), must(tensor.Zeros(tensor.F32, 1000, 1))
	table := aten.Default()
	b.SetBytes(8e6)
	for b.Loop() {
		_, err := table.Call(b.Context(), "aten::add", values{x, y}, nil)
		require.NoError(b, err)
	}
}

func BenchmarkMatmul(b *testing.B) {
	x := must(tensor.Zeros(tensor.F32, 256, 256))
	table := aten.Default()
	for b.Loop() {
		_, err := table.Call(b.Context(), "aten::mm", values{x, x}, nil)
		require.NoError(b, err)
	}
	b.ReportMetric(2*256*256*256*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
}

func BenchmarkSum(b *testing.B) {
	x := must(tensor.Zeros(tensor.F32, 1000, 1000))
	table := aten.Default()
	b.SetBytes(4e6)
	for b.Loop() {
		_, err := table.Call(b.Context(), "aten::sum", values{x}, nil)
		require.NoError(b, err)
	}
}
