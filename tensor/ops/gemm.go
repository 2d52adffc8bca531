package ops

// Gemm multiplies matrices in row-major order, as the functions of BLAS with that name do: F32 and
// F64 set c, m rows and n columns, to op(a)·op(b) + beta·c, where op transposes its matrix if transA
// or transB is set. op(a) has m rows and k columns, op(b) has k rows and n columns. lda, ldb and ldc
// are the distances between neighbouring rows in memory, in elements. If beta is 0, c may hold
// anything. Both may be called concurrently.
type Gemm interface {
	F32(transA, transB bool, m, n, k int, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int)
	F64(transA, transB bool, m, n, k int, a []float64, lda int, b []float64, ldb int, beta float64, c []float64, ldc int)
}
