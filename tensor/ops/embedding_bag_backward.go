package ops

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// EmbeddingBagBackward returns the gradient of a weight with that number of rows, for a call of
// EmbeddingBag with these arguments, as a new contiguous tensor of shape [rows, width]. grad is the
// gradient of the result, of shape [bags, width] and dtype F32 or F64. The error is a *ValueError if
// grad has another shape or dtype or rows is negative; otherwise it is one of those of EmbeddingBag.
func (e *Engine) EmbeddingBagBackward(ctx context.Context, grad, indices, offsets,
	perSampleWeights *tensor.Tensor, rows int, o BagOptions) (*tensor.Tensor, error) {
	if err := checkBagGrad(ctx, grad, rows); err != nil {
		return nil, err
	}
	if grad.DType() == tensor.F32 {
		return embeddingBagBackward[float32](e, grad, indices, offsets, perSampleWeights, rows, o)
	}
	return embeddingBagBackward[float64](e, grad, indices, offsets, perSampleWeights, rows, o)
}

// checkBagGrad returns the error of ctx if it has ended, a *ValueError unless grad is a matrix of F32
// or F64 and rows is not negative, and otherwise nil.
func checkBagGrad(ctx context.Context, grad *tensor.Tensor, rows int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if rows < 0 {
		return valueErrorf("a weight cannot have %d rows", rows)
	}
	if grad.Rank() != 2 {
		return valueErrorf("the gradient of embedding_bag must be 2-D, but has the shape %v", grad.Shape())
	}
	return checkFloat("embedding_bag", grad)
}

// bagGradients is the gradient of the result of EmbeddingBag, and its bags. The slices are valid
// while the tensors in owners, and those of the bags, are alive.
type bagGradients[T floatNum] struct {
	*bags[T]
	grad  []T
	width int
	owner *tensor.Tensor // of grad
}

// newBagGradients returns grad, whose dtype is that of T, with the bags of the other arguments. The
// errors are those of EmbeddingBagBackward.
func newBagGradients[T floatNum](e *Engine, grad, indices, offsets, perSampleWeights *tensor.Tensor,
	rows int, o BagOptions) (*bagGradients[T], error) {
	b, err := newBags[T](e, grad, indices, offsets, perSampleWeights, rows, o)
	if err != nil {
		return nil, err
	}
	g := &bagGradients[T]{bags: b, width: grad.Shape()[1]}
	if err := checkGradShape("embedding_bag", grad, []int{b.count(), g.width}); err != nil {
		return nil, err
	}
	g.grad, g.owner, err = packed[T](e, grad)
	return g, err
}

// row returns the gradient of the result for a bag.
func (g *bagGradients[T]) row(bag int) []T { return g.grad[bag*g.width:][:g.width] }

// keepAlive keeps the slices of g valid until it is called.
func (g *bagGradients[T]) keepAlive() { keepAlive(g.owner, g.owners[0], g.owners[1]) }

// embeddingBagBackward is EmbeddingBagBackward for the dtype of T.
func embeddingBagBackward[T floatNum](e *Engine, grad, indices, offsets, perSampleWeights *tensor.Tensor,
	rows int, o BagOptions) (*tensor.Tensor, error) {
	g, err := newBagGradients[T](e, grad, indices, offsets, perSampleWeights, rows, o)
	if err != nil {
		return nil, err
	}
	out, to, err := newTensor[T](e, rows, g.width)
	if err != nil {
		return nil, err
	}
	clear(to)
	for bag := range g.count() {
		for k := g.starts[bag]; k < g.starts[bag+1]; k++ {
			addRow(to[int(g.list[k])*g.width:][:g.width], g.row(bag), g.factor(bag, k))
		}
	}
	g.keepAlive()
	return out, nil
}

// EmbeddingBagSparseBackward returns what EmbeddingBagBackward returns, as a sparse tensor of shape
// [rows, width] that lists the gradient for each element of a bag in the order of indices, even if
// an index occurs repeatedly. The errors are those of EmbeddingBagBackward.
func (e *Engine) EmbeddingBagSparseBackward(ctx context.Context, grad, indices, offsets,
	perSampleWeights *tensor.Tensor, rows int, o BagOptions) (*tensor.Sparse, error) {
	if err := checkBagGrad(ctx, grad, rows); err != nil {
		return nil, err
	}
	if grad.DType() == tensor.F32 {
		return embeddingBagSparseBackward[float32](e, grad, indices, offsets, perSampleWeights, rows, o)
	}
	return embeddingBagSparseBackward[float64](e, grad, indices, offsets, perSampleWeights, rows, o)
}

// embeddingBagSparseBackward is EmbeddingBagSparseBackward for the dtype of T.
func embeddingBagSparseBackward[T floatNum](e *Engine, grad, indices, offsets,
	perSampleWeights *tensor.Tensor, rows int, o BagOptions) (*tensor.Sparse, error) {
	g, err := newBagGradients[T](e, grad, indices, offsets, perSampleWeights, rows, o)
	if err != nil {
		return nil, err
	}
	values, to, err := newTensor[T](e, g.end(), g.width)
	if err != nil {
		return nil, err
	}
	clear(to)
	for bag := range g.count() {
		for k := g.starts[bag]; k < g.starts[bag+1]; k++ {
			addRow(to[k*g.width:][:g.width], g.row(bag), g.factor(bag, k))
		}
	}
	out, err := e.sparseRows(g.list[:g.end()], g.owners[0], values, rows)
	g.keepAlive()
	return out, err
}

// EmbeddingBagWeightsBackward returns the gradient of perSampleWeights for a call of EmbeddingBag
// with BagSum and these arguments, as a new contiguous tensor of the shape of indices: for each
// index, the inner product of its row of weight and the gradient of its bag. It is 0 for an index in
// no bag. grad is the gradient of the result, with the dtype of weight. includeLastOffset is that of
// BagOptions. The errors are those of EmbeddingBagBackward.
func (e *Engine) EmbeddingBagWeightsBackward(ctx context.Context, grad, weight, indices,
	offsets *tensor.Tensor, includeLastOffset bool) (*tensor.Tensor, error) {
	if err := checkWeight(ctx, "embedding_bag", weight); err != nil {
		return nil, err
	}
	rows, width := weight.Shape()[0], weight.Shape()[1]
	if err := checkBagGrad(ctx, grad, rows); err != nil {
		return nil, err
	}
	if err := sameDType(weight, grad); err != nil {
		return nil, err
	}
	if grad.Shape()[1] != width {
		return nil, valueErrorf("the gradient of embedding_bag has the shape %v, which does not fit a weight of the shape %v",
			grad.Shape(), weight.Shape())
	}
	o := BagOptions{IncludeLastOffset: includeLastOffset}
	if weight.DType() == tensor.F32 {
		return sampleWeightsBackward[float32](e, grad, weight, indices, offsets, o)
	}
	return sampleWeightsBackward[float64](e, grad, weight, indices, offsets, o)
}

// sampleWeightsBackward is EmbeddingBagWeightsBackward for the dtype of T.
func sampleWeightsBackward[T floatNum](e *Engine, grad, weight, indices, offsets *tensor.Tensor,
	o BagOptions) (*tensor.Tensor, error) {
	g, err := newBagGradients[T](e, grad, indices, offsets, nil, weight.Shape()[0], o)
	if err != nil {
		return nil, err
	}
	table, owner, err := packed[T](e, weight)
	if err != nil {
		return nil, err
	}
	out, to, err := newTensor[T](e, indices.Shape()...)
	if err != nil {
		return nil, err
	}
	clear(to)
	for bag := range g.count() {
		for k := g.starts[bag]; k < g.starts[bag+1]; k++ {
			sum := 0.0
			row := table[int(g.list[k])*g.width:]
			for j, v := range g.row(bag) {
				sum += float64(v) * float64(row[j])
			}
			to[k] = T(sum)
		}
	}
	g.keepAlive()
	keepAlive(owner)
	return out, nil
}
