// Package gonumblas multiplies matrices with the BLAS of gonum, which is written in Go and assembly.
// It is separate from package ops because not all users need gonum:
//
//	engine := &ops.Engine{Gemm: gonumblas.Gemm{}}
package gonumblas

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// Gemm implements ops.Gemm. It copies no matrix and has no state. Large products use several
// goroutines. A factor of a that is 0 may be skipped, so that 0 times NaN or infinity adds nothing.
type Gemm struct{}

// smallWork is the number of multiplications up to which a loop is faster than the calls of gonum.
const smallWork = 64

// F32 sets c to op(a)·op(b) + beta·c, as ops.Gemm describes.
func (Gemm) F32(transA, transB bool, m, n, k int, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	if m*n*k <= smallWork {
		small(transA, transB, m, n, k, a, lda, b, ldb, beta, c, ldc)
		return
	}
	gonum.Implementation{}.Sgemm(flag(transA), flag(transB), m, n, k, 1, a, lda, b, ldb, beta, c, ldc)
}

// F64 sets c to op(a)·op(b) + beta·c, as ops.Gemm describes.
func (Gemm) F64(transA, transB bool, m, n, k int, a []float64, lda int, b []float64, ldb int, beta float64, c []float64, ldc int) {
	if m*n*k <= smallWork {
		small(transA, transB, m, n, k, a, lda, b, ldb, beta, c, ldc)
		return
	}
	gonum.Implementation{}.Dgemm(flag(transA), flag(transB), m, n, k, 1, a, lda, b, ldb, beta, c, ldc)
}

func flag(trans bool) blas.Transpose {
	if trans {
		return blas.Trans
	}
	return blas.NoTrans
}

// small is F32 and F64 as a loop over the elements of c.
func small[T float32 | float64](transA, transB bool, m, n, k int, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int) {
	aDown, aAcross := steps(transA, lda)
	bDown, bAcross := steps(transB, ldb)
	for i := range m {
		for j := range n {
			var sum T
			for l := range k {
				sum += a[i*aDown+l*aAcross] * b[l*bDown+j*bAcross]
			}
			if beta != 0 {
				sum += beta * c[i*ldc+j]
			}
			c[i*ldc+j] = sum
		}
	}
}

// steps returns the distances, in elements, between neighbours in a column and in a row of a matrix.
func steps(trans bool, ld int) (down, across int) {
	if trans {
		return 1, ld
	}
	return ld, 1
}
