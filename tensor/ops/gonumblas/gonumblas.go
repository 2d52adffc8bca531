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
// goroutines. An element of a that is 0 may be skipped, so that 0 times NaN or infinity may add nothing.
type Gemm struct{}

// smallWork is the number of multiplications up to which a loop over the elements of the result is
// faster than the calls of gonum, and narrow is the number of columns up to which a loop over rows
// is, if b is not transposed.
const (
	smallWork = 64
	narrow    = 16
)

// F32 sets c to op(a)·op(b) + beta·c, as ops.Gemm describes.
func (Gemm) F32(transA, transB bool, m, n, k int, a []float32, lda int, b []float32, ldb int,
	beta float32, c []float32, ldc int) {
	switch {
	case m*n*k <= smallWork:
		multiplySmall(transA, transB, m, n, k, a, lda, b, ldb, beta, c, ldc)
	case n == 1:
		rows, columns, step := vectorProduct(transA, transB, m, k, ldb)
		gonum.Implementation{}.Sgemv(flag(transA), rows, columns, 1, a, lda, b, step, beta, c, ldc)
	case n <= narrow && !transB:
		multiplyNarrow(transA, m, n, k, a, lda, b, ldb, beta, c, ldc)
	default:
		gonum.Implementation{}.Sgemm(flag(transA), flag(transB), m, n, k, 1, a, lda, b, ldb, beta, c, ldc)
	}
}

// F64 sets c to op(a)·op(b) + beta·c, as ops.Gemm describes.
func (Gemm) F64(transA, transB bool, m, n, k int, a []float64, lda int, b []float64, ldb int,
	beta float64, c []float64, ldc int) {
	switch {
	case m*n*k <= smallWork:
		multiplySmall(transA, transB, m, n, k, a, lda, b, ldb, beta, c, ldc)
	case n == 1:
		rows, columns, step := vectorProduct(transA, transB, m, k, ldb)
		gonum.Implementation{}.Dgemv(flag(transA), rows, columns, 1, a, lda, b, step, beta, c, ldc)
	case n <= narrow && !transB:
		multiplyNarrow(transA, m, n, k, a, lda, b, ldb, beta, c, ldc)
	default:
		gonum.Implementation{}.Dgemm(flag(transA), flag(transB), m, n, k, 1, a, lda, b, ldb, beta, c, ldc)
	}
}

func flag(trans bool) blas.Transpose {
	if trans {
		return blas.Trans
	}
	return blas.NoTrans
}

// vectorProduct returns the rows and columns of a in memory, and the distance between the elements of
// b, for a product with a matrix b of one column.
func vectorProduct(transA, transB bool, m, k, ldb int) (rows, columns, step int) {
	if transB {
		ldb = 1
	}
	if transA {
		return k, m, ldb
	}
	return m, k, ldb
}

// multiplySmall is F32 and F64 as a loop over the elements of c.
func multiplySmall[T float32 | float64](transA, transB bool, m, n, k int, a []T, lda int, b []T, ldb int,
	beta T, c []T, ldc int) {
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

// multiplyNarrow is F32 and F64 for a b that is not transposed, as a loop over the rows of c. It adds
// multiples of four rows of b at a time, so that each sum is loaded and stored once for all four.
func multiplyNarrow[T float32 | float64](transA bool, m, n, k int, a []T, lda int, b []T, ldb int,
	beta T, c []T, ldc int) {
	down, across := steps(transA, lda)
	for i := range m {
		to := c[i*ldc:][:n]
		if beta == 0 {
			clear(to)
		} else if beta != 1 {
			for j := range to {
				to[j] *= beta
			}
		}
		l, at := 0, i*down
		for ; l+4 <= k; l += 4 {
			b0, b1, b2, b3 := b[l*ldb:][:n], b[(l+1)*ldb:][:n], b[(l+2)*ldb:][:n], b[(l+3)*ldb:][:n]
			a0, a1, a2, a3 := a[at], a[at+across], a[at+2*across], a[at+3*across]
			for j := range to {
				to[j] += a0*b0[j] + a1*b1[j] + a2*b2[j] + a3*b3[j]
			}
			at += 4 * across
		}
		for ; l < k; l++ {
			for j, v := range b[l*ldb:][:n] {
				to[j] += a[at] * v
			}
			at += across
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
