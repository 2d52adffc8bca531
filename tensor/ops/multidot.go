package ops

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// maxOrdered is the number of factors up to which MultiDot searches the best order. The search takes
// time proportional to its third power.
const maxOrdered = 256

// MultiDot returns the product of the matrices xs, at least two, in new memory. It multiplies them
// in the order that takes the fewest multiplications; more than 256 are multiplied from left to
// right. The first may be a vector, which counts as a matrix with one row, and the last one, which
// counts as a matrix with one column; that dimension is removed from the result. All have the same
// dtype, any but Bool.
//
// The error is a *ValueError if the number of tensors, a rank, a dtype or a shape is wrong, or one
// of those of MatMul.
func (e *Engine) MultiDot(ctx context.Context, xs []*tensor.Tensor) (*tensor.Tensor, error) {
	if err := checkMultiDot(xs); err != nil {
		return nil, err
	}
	last := len(xs) - 1
	if len(xs) == 2 {
		return e.product(ctx, xs[0], xs[1], nil)
	}
	factors := append([]*tensor.Tensor(nil), xs...)
	var err error
	if xs[0].Rank() == 1 {
		if factors[0], err = xs[0].Unsqueeze(0); err != nil {
			return nil, err
		}
	}
	if xs[last].Rank() == 1 {
		if factors[last], err = xs[last].Unsqueeze(1); err != nil {
			return nil, err
		}
	}
	if err := checkChain(factors); err != nil {
		return nil, err
	}
	out, err := e.multiplyChain(ctx, factors)
	if err != nil {
		return nil, err
	}
	if xs[last].Rank() == 1 {
		if out, err = out.Select(1, 0); err != nil {
			return nil, err
		}
	}
	if xs[0].Rank() == 1 {
		return out.Select(0, 0)
	}
	return out, nil
}

// checkMultiDot returns a *ValueError unless the number, the ranks and the dtypes of xs are those
// that MultiDot takes.
func checkMultiDot(xs []*tensor.Tensor) error {
	last := len(xs) - 1
	if last < 1 {
		return valueErrorf("multi_dot(): expected at least 2 tensors but got %d", len(xs))
	}
	for i, x := range xs {
		vectorAllowed := i == 0 || i == last
		switch {
		case x.Rank() == 2 || vectorAllowed && x.Rank() == 1:
		case i == 0:
			return valueErrorf("multi_dot(): the first tensor must be 1D or 2D but got %dD", x.Rank())
		case i == last:
			return valueErrorf("multi_dot(): the last tensor must be 1D or 2D but got %dD", x.Rank())
		default:
			return valueErrorf("multi_dot(): tensor %d must be 2D but got %dD", i, x.Rank())
		}
		if x.DType() != xs[0].DType() {
			return valueErrorf("multi_dot(): all tensors must have the same dtype but tensor 0 is %s and tensor %d %s",
				torchNames[xs[0].DType()], i, torchNames[x.DType()])
		}
	}
	return nil
}

// checkChain returns a *ValueError unless each of the matrices has as many columns as the next has
// rows.
func checkChain(factors []*tensor.Tensor) error {
	for i := 1; i < len(factors); i++ {
		if a, b := factors[i-1].Shape(), factors[i].Shape(); a[1] != b[0] {
			return valueErrorf("multi_dot(): tensors %d and %d with shapes %v and %v cannot be multiplied", i-1, i, a, b)
		}
	}
	return nil
}

// multiplyChain returns the product of at least two matrices. The errors are those of product.
func (e *Engine) multiplyChain(ctx context.Context, factors []*tensor.Tensor) (*tensor.Tensor, error) {
	if len(factors) <= maxOrdered {
		sizes := []int{factors[0].Shape()[0]}
		for _, f := range factors {
			sizes = append(sizes, f.Shape()[1])
		}
		return e.multiplyOrdered(ctx, factors, chainOrder(sizes), 0, len(factors)-1)
	}
	out := factors[0]
	for _, f := range factors[1:] {
		var err error
		if out, err = e.product(ctx, out, f, nil); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// multiplyOrdered returns the product of the factors from first to last, multiplied in the order
// that splits gives, or the only factor itself. The errors are those of product.
func (e *Engine) multiplyOrdered(ctx context.Context, factors []*tensor.Tensor, splits [][]int, first,
	last int) (*tensor.Tensor, error) {
	if first == last {
		return factors[first], nil
	}
	split := splits[first][last]
	left, err := e.multiplyOrdered(ctx, factors, splits, first, split)
	if err != nil {
		return nil, err
	}
	right, err := e.multiplyOrdered(ctx, factors, splits, split+1, last)
	if err != nil {
		return nil, err
	}
	return e.product(ctx, left, right, nil)
}

// chainOrder returns the best order of the products of len(sizes)-1 matrices, of which matrix i has
// sizes[i] rows and sizes[i+1] columns: to multiply the matrices from first to last, multiply the
// product of those up to splits[first][last] by the product of those after it.
func chainOrder(sizes []int) (splits [][]int) {
	n := len(sizes) - 1
	costs := make([][]float64, n) // float64, because an int may overflow
	splits = make([][]int, n)
	for i := range n {
		costs[i], splits[i] = make([]float64, n), make([]int, n)
	}
	for length := 2; length <= n; length++ {
		for first := 0; first+length <= n; first++ {
			last := first + length - 1
			best := -1.0
			for split := first; split < last; split++ {
				cost := costs[first][split] + costs[split+1][last] +
					float64(sizes[first])*float64(sizes[split+1])*float64(sizes[last+1])
				if best < 0 || cost < best {
					best, splits[first][last] = cost, split
				}
			}
			costs[first][last] = best
		}
	}
	return splits
}
