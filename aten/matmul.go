package aten

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// mm is the kernel of aten::mm: it returns the product of arguments 0 and 1, two matrices, as a new
// dense tensor. The first may be sparse. The error is a *ValueError if an argument is not a matrix
// or the second is sparse; otherwise it is an error of product or sparseProduct.
func mm(c *call) (Value, error) {
	y, ok := c.args[1].(*tensor.Tensor)
	if !ok {
		return nil, valueErrorf("mm does not take a %s as its second matrix", describe(c.args[1]))
	}
	if s, ok := c.args[0].(*tensor.Sparse); ok {
		return value(c.sparseProduct(s, y))
	}
	x := c.tensor(0)
	switch {
	case x.Rank() != 2:
		return nil, valueErrorf("self must be a matrix")
	case y.Rank() != 2:
		return nil, valueErrorf("mat2 must be a matrix")
	}
	return value(c.product(x, y))
}

// bmm is the kernel of aten::bmm: it multiplies each matrix of argument 0 by the matrix of argument
// 1 with the same index, and returns the products as a new tensor. Both arguments have three
// dimensions, the first of which counts the matrices. The error is a *ValueError if the ranks or
// the numbers of matrices are wrong; otherwise it is an error of product.
func bmm(c *call) (*tensor.Tensor, error) {
	x, y := c.tensor(0), c.tensor(1)
	switch {
	case x.Rank() != 3:
		return nil, valueErrorf("batch1 must be a 3D tensor")
	case y.Rank() != 3:
		return nil, valueErrorf("batch2 must be a 3D tensor")
	case x.Shape()[0] != y.Shape()[0]:
		return nil, valueErrorf("Expected size for first two dimensions of batch2 tensor to be: [%d, %d] but got: [%d, %d].", x.Shape()[0], x.Shape()[2], y.Shape()[0], y.Shape()[1])
	}
	return c.product(x, y)
}

// mv is the kernel of aten::mv: it multiplies argument 0, a matrix, by argument 1, a vector, and
// returns the product, a vector, in new memory. The error is a *ValueError if the ranks are not 2
// and 1; otherwise it is an error of call.matmul.
func mv(c *call) (*tensor.Tensor, error) {
	x, y := c.tensor(0), c.tensor(1)
	if x.Rank() != 2 || y.Rank() != 1 {
		return nil, valueErrorf("vector + matrix @ vector expected, got 1, %d, %d", x.Rank(), y.Rank())
	}
	return c.matmul(x, y)
}

// dot is the kernel of aten::dot: it returns the inner product of arguments 0 and 1, two vectors,
// as a new tensor of rank 0. The error is a *ValueError if one is not a vector; otherwise it is an
// error of call.matmul.
func dot(c *call) (*tensor.Tensor, error) {
	x, y := c.tensor(0), c.tensor(1)
	if x.Rank() != 1 || y.Rank() != 1 {
		return nil, valueErrorf("1D tensors expected, but got %dD and %dD tensors", x.Rank(), y.Rank())
	}
	return c.matmul(x, y)
}

func matmul(c *call) (*tensor.Tensor, error) { return c.matmul(c.tensor(0), c.tensor(1)) }

// matmul returns the product of x and y in new memory. Each is a vector, or has matrices in its
// last two dimensions; the dimensions before these are broadcast. A vector x counts as a matrix
// with one row and a vector y as one with one column; that dimension is removed from the result.
// The error is a *ValueError if a rank is 0; otherwise it is an error of product.
func (c *call) matmul(x, y *tensor.Tensor) (*tensor.Tensor, error) {
	if x.Rank() == 0 || y.Rank() == 0 {
		return nil, valueErrorf("both arguments to matmul need to be at least 1D, but they are %dD and %dD", x.Rank(), y.Rank())
	}
	row, column := x.Rank() == 1, y.Rank() == 1
	var err error
	if row {
		if x, err = x.Unsqueeze(0); err != nil {
			return nil, err
		}
	}
	if column {
		if y, err = y.Unsqueeze(1); err != nil {
			return nil, err
		}
	}
	out, err := c.product(x, y)
	if err != nil {
		return nil, err
	}
	if column {
		if out, err = out.Select(out.Rank()-1, 0); err != nil {
			return nil, err
		}
	}
	if row {
		dim := out.Rank() - 1
		if !column {
			dim--
		}
		return out.Select(dim, 0)
	}
	return out, nil
}

// linear is the kernel of aten::linear: it returns argument 0, the input, multiplied by the
// transpose of argument 1, the weight matrix, in new memory. It adds argument 2, a dense bias,
// unless that is nil. The error is a *ValueError if the weight is not a matrix, if the bias is
// sparse, or if dtypes differ; otherwise it is an error of call.matmul or binary.
func linear(c *call) (*tensor.Tensor, error) {
	weight := c.tensor(1)
	if weight.Rank() != 2 {
		return nil, valueErrorf("linear: the weight must be a matrix, but it is %dD", weight.Rank())
	}
	weight, err := weight.Transpose(0, 1)
	if err != nil {
		return nil, err
	}
	out, err := c.matmul(c.tensor(0), weight)
	if err != nil || !c.given(2) {
		return out, err
	}
	bias, ok := c.args[2].(*tensor.Tensor)
	if !ok {
		return nil, valueErrorf("linear: the bias must be dense")
	}
	if err := sameDType(out, bias); err != nil {
		return nil, err
	}
	return c.binary(opAdd, out, bias, out.DType())
}

// product multiplies the matrices in the last two dimensions of x and y, which must have rank 2 or
// more, and returns the products in a new tensor. The dimensions before the last two are broadcast.
// The error is a *ValueError if the dtypes differ, are Bool, or the matrices do not fit, a
// *SizeError if the shapes cannot be broadcast, a *LimitError, the error of the call's context, or
// one of package tensor.
func (c *call) product(x, y *tensor.Tensor) (*tensor.Tensor, error) {
	if err := sameDType(x, y); err != nil {
		return nil, err
	}
	d := x.DType()
	if d == tensor.Bool {
		return nil, valueErrorf("matrices of bools cannot be multiplied")
	}
	x, err := c.cast(x, computeType(d))
	if err != nil {
		return nil, err
	}
	if y, err = c.cast(y, computeType(d)); err != nil {
		return nil, err
	}
	p, err := planProduct(x.Shape(), y.Shape())
	if err != nil {
		return nil, err
	}
	var out *tensor.Tensor
	switch x.DType() {
	case tensor.U8:
		out, err = matrices[uint8](c, p, x, y)
	case tensor.I8:
		out, err = matrices[int8](c, p, x, y)
	case tensor.I16:
		out, err = matrices[int16](c, p, x, y)
	case tensor.I32:
		out, err = matrices[int32](c, p, x, y)
	case tensor.I64:
		out, err = matrices[int64](c, p, x, y)
	case tensor.F32:
		out, err = matrices[float32](c, p, x, y)
	case tensor.F64:
		out, err = matrices[float64](c, p, x, y)
	case tensor.C64:
		out, err = matrices[complex64](c, p, x, y)
	default:
		out, err = matrices[complex128](c, p, x, y)
	}
	if err != nil {
		return nil, err
	}
	return c.cast(out, d)
}

// productPlan describes a loop over pairs of matrices, m by k and k by n, and the shape of the
// tensor of their products.
type productPlan struct {
	m, k, n int
	shape   []int     // of the result
	batches []loopDim // steps in matrices
}

// planProduct returns the plan for the product of two tensors with the shapes xs and ys, each with
// at least two dimensions: the sizes of the matrices, which the last two dimensions hold, the loop
// over the pairs of matrices, and the shape of the result. The error is a *ValueError if the
// matrices do not fit, or a *SizeError if the dimensions before them cannot be broadcast.
func planProduct(xs, ys []int) (*productPlan, error) {
	a, b := len(xs)-2, len(ys)-2
	p := &productPlan{m: xs[a], k: xs[a+1], n: ys[b+1]}
	if p.k != ys[b] {
		return nil, valueErrorf("mat1 and mat2 shapes cannot be multiplied (%dx%d and %dx%d)", p.m, p.k, ys[b], p.n)
	}
	batch, err := broadcast(xs[:a], ys[:b])
	if err != nil {
		return nil, err
	}
	p.batches = loopDims(batch, xs[:a], ys[:b])
	p.shape = append(slices.Clone(batch), p.m, p.n)
	return p, nil
}

// matrices returns a new tensor with the products of the pairs of matrices in x and y that the plan
// p describes. T must be the Go type of the dtype of x and y. Before each row of the result it
// checks the context of the call, and returns its error if it has ended. Other errors are a
// *LimitError or one of package tensor.
func matrices[T number](c *call, p *productPlan, x, y *tensor.Tensor) (*tensor.Tensor, error) {
	out, to, err := newTensor[T](c, p.shape...)
	if err != nil {
		return nil, err
	}
	a, err := elements[T](c, x)
	if err != nil {
		return nil, err
	}
	b, err := elements[T](c, y)
	if err != nil || len(to) == 0 || p.k == 0 {
		return out, err
	}
	w := walk{loopDims: p.batches}
	for {
		x, y := a[w.x*p.m*p.k:], b[w.y*p.k*p.n:]
		for i := range p.m {
			if err := c.ctx.Err(); err != nil {
				return nil, err
			}
			addMultiples(to[i*p.n:][:p.n], x[i*p.k:][:p.k], y)
		}
		to = to[p.m*p.n:]
		if !w.next() {
			return out, nil
		}
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
		addMultiple(to, y[k*n:][:n], factors[k])
	}
}

// addMultiple adds factor*row[j] to to[j] for each j. len(row) must be at least len(to).
func addMultiple[T number](to, row []T, factor T) {
	row = row[:len(to)]
	for j := range to {
		to[j] += factor * row[j]
	}
}
