package ops

import (
	"context"
	"errors"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// multiply is Engine.product for operands whose dtype is that of T, of rank 1 or more.
func multiply[T number](ctx context.Context, e *Engine, x, y, bias *tensor.Tensor) (*tensor.Tensor, error) {
	shape, batch, m, k, n, err := productShape(x.Shape(), y.Shape())
	if err != nil {
		return nil, err
	}
	if bias != nil {
		if err := checkBias(shape, bias.Shape()); err != nil {
			return nil, err
		}
	}
	out, to, err := newTensor[T](e, shape...)
	if err != nil || len(to) == 0 {
		return out, err
	}
	beta := 0
	if bias != nil {
		if err := fillRows(e, out, to, bias); err != nil {
			return nil, err
		}
		beta = 1
	}
	if k == 0 {
		if bias == nil {
			clear(to)
		}
		return out, nil
	}
	if x, y, err = asMatrices(ctx, e, x, y); err != nil {
		return nil, err
	}
	if x.Rank() == 2 && y.Rank() == 2 {
		m, batch = len(to)/n, nil
	}
	a, err := gemmOperandOf[T](e, x)
	if err != nil {
		return nil, err
	}
	b, err := gemmOperandOf[T](e, y)
	if err != nil {
		return nil, err
	}
	w := walk{loopDims: batchLoops(batch, a.owner, b.owner)}
	for {
		if err := multiplyPair(ctx, e.Gemm, a, b, w.x, w.y, m, k, n, beta, to[:m*n]); err != nil {
			return nil, err
		}
		to = to[m*n:]
		if !w.next() {
			keepAlive(a.owner, b.owner)
			return out, nil
		}
	}
}

// fillRows sets to, the elements of out, to those of bias, which can be broadcast to the shape of
// out and has its dtype. T is the Go type of that dtype. The errors are those of package tensor.
func fillRows[T tensor.Element](e *Engine, out *tensor.Tensor, to []T, bias *tensor.Tensor) error {
	if n := bias.Len(); bias.Rank() == 1 && n == out.Shape()[out.Rank()-1] {
		row, owner, err := packed[T](e, bias)
		if err != nil {
			return err
		}
		for len(to) > 0 {
			to = to[copy(to, row):]
		}
		keepAlive(owner)
		return nil
	}
	all, err := bias.Expand(out.Shape()...)
	if err != nil {
		return err
	}
	return out.CopyFrom(all)
}

// asMatrices returns x and y with at least two dimensions each: a vector x becomes a matrix with one
// row, and a vector y one with one column. If y holds a single matrix, both results are matrices,
// the first with the rows of all matrices of x. The results share the memory of x and y, or are
// copies. The errors are those of flatten.
func asMatrices(ctx context.Context, e *Engine, x, y *tensor.Tensor) (*tensor.Tensor, *tensor.Tensor, error) {
	var err error
	if x.Rank() == 1 {
		if x, err = x.Unsqueeze(0); err != nil {
			return nil, nil, err
		}
	}
	if y.Rank() == 1 {
		if y, err = y.Unsqueeze(1); err != nil {
			return nil, nil, err
		}
	}
	if slices.ContainsFunc(y.Shape()[:y.Rank()-2], func(size int) bool { return size != 1 }) {
		return x, y, nil
	}
	if x, err = e.flatten(ctx, x); err != nil {
		return nil, nil, err
	}
	y, err = e.flatten(ctx, y)
	return x, y, err
}

// flatten returns the rows of t, of rank 2 or more, as one matrix: a tensor of shape [rows, columns]
// that shares the memory of t if its strides allow it, and is a copy otherwise, also on a device. The
// errors are those of Clone.
func (e *Engine) flatten(ctx context.Context, t *tensor.Tensor) (*tensor.Tensor, error) {
	last := t.Rank() - 1
	if last == 1 {
		return t, nil
	}
	rows, step, ok := mergeDims(t.Shape()[:last], t.Strides()[:last])
	if !ok {
		var err error
		if t, err = e.Clone(ctx, t); err != nil {
			return nil, err
		}
		rows, step, _ = mergeDims(t.Shape()[:last], t.Strides()[:last])
	}
	shape, strides := []int{rows, t.Shape()[last]}, []int{step, t.Strides()[last]}
	return tensor.Strided(t.Storage(), t.DType(), shape, strides, t.Offset())
}

// mergeDims returns the size and stride of one dimension that has the elements of all dimensions
// with these sizes and strides, in row-major order. ok is false if there is none.
func mergeDims(sizes, strides []int) (size, stride int, ok bool) {
	size, stride = 1, 1
	for i := len(sizes) - 1; i >= 0; i-- {
		switch {
		case sizes[i] == 1:
		case size == 1:
			size, stride = sizes[i], strides[i]
		case strides[i] == size*stride:
			size *= sizes[i]
		default:
			return 0, 0, false
		}
	}
	return size, stride, true
}

// gemmOperand is one side of a product: matrices of elements of type T, as Gemm takes them.
type gemmOperand[T number] struct {
	data  []T            // from the first element on
	owner *tensor.Tensor // of data; its strides are those of the matrices
	trans bool           // the matrices are transposed in memory
	ld    int            // elements from one row in memory to the next
}

// gemmOperandOf returns the matrices in the last two dimensions of t, without a copy if they are
// contiguous, or if e has a Gemm for T and one of the two dimensions is contiguous. t must have
// elements, and T must be the Go type of its dtype. The errors are those of clone and of package
// tensor.
func gemmOperandOf[T number](e *Engine, t *tensor.Tensor) (gemmOperand[T], error) {
	o, ok, err := sharedOperand[T](e, t)
	if ok || err != nil {
		return o, err
	}
	if t, err = e.cloneDistinct(t); err != nil {
		return o, err
	}
	o, _, err = sharedOperand[T](e, t)
	return o, err
}

// sharedOperand is gemmOperandOf without a copy. ok is false if t would have to be copied.
func sharedOperand[T number](e *Engine, t *tensor.Tensor) (o gemmOperand[T], ok bool, err error) {
	o.owner = t
	o.trans, o.ld, ok = matrixLayout(t)
	if !hasGemm[T](e) && (o.trans || o.ld != t.Shape()[t.Rank()-1]) {
		ok = false
	}
	if !ok {
		return o, false, nil
	}
	o.data, err = window[T](t)
	if errors.Is(err, tensor.ErrUnaligned) {
		return o, false, nil
	}
	return o, true, err
}

// hasGemm reports whether e.Gemm multiplies matrices of elements of type T.
func hasGemm[T number](e *Engine) bool {
	d := tensor.DTypeOf[T]()
	return e.Gemm != nil && (d == tensor.F32 || d == tensor.F64)
}

// matrixLayout returns how Gemm takes the matrices in the last two dimensions of t: ld is the number
// of elements between the rows in memory, which are the columns of the matrix if trans is true. ok
// is false if neither dimension is contiguous, or if rows overlap.
func matrixLayout(t *tensor.Tensor) (trans bool, ld int, ok bool) {
	r := t.Rank()
	rows, columns := t.Shape()[r-2], t.Shape()[r-1]
	down, across := t.Strides()[r-2], t.Strides()[r-1]
	switch {
	case (across == 1 || columns == 1) && rows == 1:
		return false, columns, true
	case (across == 1 || columns == 1) && down >= columns:
		return false, down, true
	case (down == 1 || rows == 1) && columns == 1:
		return true, rows, true
	case (down == 1 || rows == 1) && across >= rows:
		return true, across, true
	}
	return false, 0, false
}

// window returns the memory from the first to the last element of t, which must have elements,
// without a copy. T must be the Go type of the dtype of t. The errors are those of tensor.Data.
func window[T tensor.Element](t *tensor.Tensor) ([]T, error) {
	if t.IsContiguous() {
		return tensor.Data[T](t)
	}
	n := 1
	for i, size := range t.Shape() {
		n += (size - 1) * t.Strides()[i]
	}
	flat, err := tensor.Strided(t.Storage(), t.DType(), []int{n}, []int{1}, t.Offset())
	if err != nil {
		return nil, err
	}
	return tensor.Data[T](flat)
}

// cloneDistinct returns a copy of t in which the matrices in the last two dimensions are contiguous.
// Dimensions before these that repeat the same matrices, with stride 0, do so in the copy. The
// errors are those of clone.
func (e *Engine) cloneDistinct(t *tensor.Tensor) (*tensor.Tensor, error) {
	distinct := t
	for dim, stride := range t.Strides()[:t.Rank()-2] {
		if stride == 0 && t.Shape()[dim] > 1 {
			var err error
			if distinct, err = distinct.Narrow(dim, 0, 1); err != nil {
				return nil, err
			}
		}
	}
	c, err := e.clone(distinct)
	if err != nil || distinct == t {
		return c, err
	}
	return c.Expand(t.Shape()...)
}

// batchLoops returns the dimensions, innermost first, of the loop over the pairs of matrices of x
// and y. Their dimensions before the last two are broadcast to batch. The steps are counted in
// elements of the memory of x and y.
func batchLoops(batch []int, x, y *tensor.Tensor) []loopDim {
	if len(batch) == 0 {
		return nil // a single pair
	}
	out := make([]loopDim, len(batch))
	for i := range batch {
		l := &out[len(batch)-1-i]
		l.size = batch[i]
		l.x = batchStep(x, i-len(batch))
		l.y = batchStep(y, i-len(batch))
	}
	return out
}

// batchStep returns the distance in elements between neighbours in the dimension of t that is i
// before its matrices, i being negative. It is 0 if that dimension is broadcast.
func batchStep(t *tensor.Tensor, i int) int {
	if i += t.Rank() - 2; i < 0 || t.Shape()[i] == 1 {
		return 0
	}
	return t.Strides()[i]
}

// blockWork is about how many multiplications are done between two checks of the context.
const blockWork = 1 << 24

// multiplyPair sets to, m rows and n columns, to beta times itself plus the product of the matrix at
// position x of a and the one at position y of b. beta is 0 or 1. If ctx ends, it returns its error
// between two blocks of rows.
func multiplyPair[T number](ctx context.Context, g Gemm, a, b gemmOperand[T], x, y, m, k, n, beta int,
	to []T) error {
	step := 1
	if !a.trans {
		step = a.ld
	}
	rows := max(64, blockWork/k/n)
	for row := 0; row < m; row += rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		gemm(g, a.trans, b.trans, min(rows, m-row), n, k, a.data[x+row*step:], a.ld, b.data[y:], b.ld,
			beta, to[row*n:])
	}
	return nil
}

// gemm sets c, m rows and n columns without gaps, to beta times itself plus the product of a and b,
// as Gemm describes; beta is 0 or 1. It calls g if g is not nil and T is float32 or float64.
// Otherwise a and b must be contiguous and not transposed.
func gemm[T number](g Gemm, transA, transB bool, m, n, k int, a []T, lda int, b []T, ldb int,
	beta int, c []T) {
	if g != nil {
		switch a := any(a).(type) {
		case []float32:
			g.F32(transA, transB, m, n, k, a, lda, any(b).([]float32), ldb, float32(beta), any(c).([]float32), n)
			return
		case []float64:
			g.F64(transA, transB, m, n, k, a, lda, any(b).([]float64), ldb, float64(beta), any(c).([]float64), n)
			return
		}
	}
	if beta == 0 {
		clear(c[:m*n])
	}
	for i := range m {
		addMultiples(c[i*n:][:n], a[i*k:][:k], b)
	}
}

// addMultiples computes one row of a matrix product: for each k it adds factors[k] times row k of y
// to the elements of to. y holds len(factors) rows, one after the other, each as long as to.
// addMultiples processes four rows at a time, so that it loads and stores each sum once for all
// four.
func addMultiples[T number](to, factors, y []T) {
	n, k := len(to), 0
	for ; k+4 <= len(factors); k += 4 {
		a, b, c, d := y[k*n:][:n], y[(k+1)*n:][:n], y[(k+2)*n:][:n], y[(k+3)*n:][:n]
		f, g, h, i := factors[k], factors[k+1], factors[k+2], factors[k+3]
		for j := range to {
			to[j] += f*a[j] + g*b[j] + h*c[j] + i*d[j]
		}
	}
	for ; k < len(factors); k++ {
		row := y[k*n:][:n]
		for j := range to {
			to[j] += factors[k] * row[j]
		}
	}
}
