package gonumblas

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

var _ ops.Gemm = Gemm{}

// matrix is a matrix in memory whose rows, or columns if it is transposed, are ld elements apart.
// The elements between them are NaN.
type matrix[T float32 | float64] struct {
	trans bool
	ld    int
	data  []T
}

func random[T float32 | float64](rng *rand.Rand, trans bool, rows, columns, gap int) matrix[T] {
	if trans {
		rows, columns = columns, rows
	}
	m := matrix[T]{trans, max(columns+gap, 1), make([]T, rows*(columns+gap))}
	for i := range m.data {
		m.data[i] = T(math.NaN())
		if i%m.ld < columns {
			m.data[i] = T(rng.NormFloat64())
		}
	}
	return m
}

func (m matrix[T]) at(i, j int) float64 {
	if m.trans {
		i, j = j, i
	}
	return float64(m.data[i*m.ld+j])
}

func TestGemm(t *testing.T) {
	for _, size := range [][3]int{{1, 1, 1}, {2, 2, 2}, {4, 4, 4}, {4, 4, 5}, {5, 1, 30}, {70, 1, 66}, {3, 1, 0}, {0, 1, 70}, {1, 9, 30}, {32, 10, 128}, {128, 10, 32}, {9, 16, 31}, {9, 17, 31}, {65, 130, 70}, {130, 140, 3}, {3, 3, 0}, {0, 3, 3}, {3, 0, 3}} {
		for flags := range 16 {
			t.Run(fmt.Sprint(size, flags), func(t *testing.T) {
				check(t, size, flags, Gemm{}.F32, 1e-4)
				check(t, size, flags, Gemm{}.F64, 1e-12)
			})
		}
	}
}

// check compares f with a loop over the elements. The bits of flags are transA, transB, beta, and
// gaps between rows.
func check[T float32 | float64](t *testing.T, size [3]int, flags int, f func(transA, transB bool, m, n, k int, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int), tolerance float64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, uint64(flags)))
	m, n, k, gap := size[0], size[1], size[2], flags>>3*3
	a, b := random[T](rng, flags&1 != 0, m, k, gap), random[T](rng, flags&2 != 0, k, n, gap)
	c := random[T](rng, false, m, n, gap)
	beta := T(flags >> 2 & 1)
	before := append([]T(nil), c.data...)
	if beta == 0 {
		for i := range c.data {
			c.data[i] = T(math.NaN())
		}
	}
	f(a.trans, b.trans, m, n, k, a.data, a.ld, b.data, b.ld, beta, c.data, c.ld)
	for i := range m {
		for j := range n {
			want := float64(beta) * float64(before[i*c.ld+j])
			for l := range k {
				want += a.at(i, l) * b.at(l, j)
			}
			require.InDelta(t, want, c.at(i, j), tolerance)
		}
	}
	for i := range c.data {
		require.Equal(t, i%c.ld >= n, math.IsNaN(float64(c.data[i])), "element %d between the rows", i)
	}
}

// BenchmarkF32 compares Gemm and bare gonum at the sizes of a small network: the products of both
// layers, forward and backward, with weights of shape [out, in].
func BenchmarkF32(b *testing.B) {
	for _, c := range []struct {
		transA, transB bool
		m, n, k        int
	}{
		{false, false, 2, 2, 2}, {false, false, 4, 4, 4}, {false, true, 4, 4, 8}, {false, false, 32, 128, 64}, {false, true, 32, 128, 64}, {true, false, 128, 64, 32},
		{false, true, 32, 10, 128}, {false, false, 32, 128, 10}, {true, false, 10, 128, 32},
		{false, false, 32, 10, 128}, {true, false, 128, 10, 32}, {false, false, 64, 1, 64}, {true, false, 64, 1, 64},
		{false, false, 32, 16, 128}, {true, false, 128, 16, 32}, {false, false, 32, 24, 128}, {true, false, 128, 24, 32},
		{false, false, 256, 256, 256},
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		x, y := random[float32](rng, c.transA, c.m, c.k, 0), random[float32](rng, c.transB, c.k, c.n, 0)
		out := make([]float32, c.m*c.n)
		run := func(name string, f func()) {
			b.Run(fmt.Sprintf("%dx%dx%d/%v/%v/%s", c.m, c.k, c.n, c.transA, c.transB, name), func(b *testing.B) {
				for b.Loop() {
					f()
				}
				b.ReportMetric(2*float64(c.m*c.n*c.k)*float64(b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
			})
		}
		run("gonum", func() {
			gonum.Implementation{}.Sgemm(flag(c.transA), flag(c.transB), c.m, c.n, c.k, 1, x.data, x.ld, y.data, y.ld, 0, out, c.n)
		})
		run("Gemm", func() {
			Gemm{}.F32(c.transA, c.transB, c.m, c.n, c.k, x.data, x.ld, y.data, y.ld, 0, out, c.n)
		})
	}
}
