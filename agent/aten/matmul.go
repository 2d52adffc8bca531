package aten

import (
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// mm is a kernel that multiplies two matrices, the first of which may be sparse; the product is dense.
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

// bmm is a kernel that multiplies matrices pairwise: each of the two arguments has three dimensions,
// and both hold the same number of matrices.
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

// mv is a kernel that multiplies a matrix by a vector.
func mv(c *call) (*tensor.Tensor, error) {
	x, y := c.tensor(0), c.tensor(1)
	if x.Rank() != 2 || y.Rank() != 1 {
		return nil, valueErrorf("vector + matrix @ vector expected, got 1, %d, %d", x.Rank(), y.Rank())
	}
	return c.matmul(x, y)
}

// dot is a kernel for the inner product of two vectors.
func dot(c *call) (*tensor.Tensor, error) {
	x, y := c.tensor(0), c.tensor(1)
	if x.Rank() != 1 || y.Rank() != 1 {
		return nil, valueErrorf("1D tensors expected, but got %dD and %dD tensors", x.Rank(), y.Rank())
	}
	return c.matmul(x, y)
}

func matmul(c *call) (*tensor.Tensor, error) { return c.matmul(c.tensor(0), c.tensor(1)) }

// matmul returns the product of x and y, of which each may be a vector or have matrices in its last two
// dimensions. A vector is treated as a matrix with one row (x) or one column (y), and that dimension is
// removed from the result. The error is a *ValueError, a *SizeError or a *LimitError.
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

// linear is a kernel for input times the transposed weight, plus the bias if there is one.
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

// product returns the products of the matrices in the last two dimensions of x and y, which have at
// least two. The dimensions before them are broadcast. The error is a *ValueError if dtypes or sizes do
// not match, a *SizeError or a *LimitError.
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

// productPlan describes a loop over pairs of matrices, m by k and k by n, and the shape of the tensor
// of their products.
type productPlan struct {
	m, k, n int
	shape   []int     // of the result
	batches []loopDim // steps in matrices
}

// planProduct returns the plan for the product of two tensors with the shapes xs and ys, which have at
// least two dimensions. The error is a *ValueError or a *SizeError.
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

// matrices returns a new tensor with the products of the matrices in x and y that the plan p describes.
// The elements of x and y must have type T. It returns early with the error of the context, which it
// checks once per row of the result.
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

// addMultiples adds factors[k] times row k of y, for each k, to the elements of to, a row of the
// product. y has len(factors) rows as long as to. It processes four rows of y at a time, to load and
// store each element of the sum once for all four.
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

// addMultiple adds factor times each element of row to the element of to with the same index. row must
// be at least as long as to.
func addMultiple[T number](to, row []T, factor T) {
	row = row[:len(to)]
	for j := range to {
		to[j] += factor * row[j]
	}
}
