package ops

import (
	"context"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Embedding returns the rows of weight, of shape [rows, width], that indices lists, as a new
// contiguous tensor: its shape is that of indices and then width. weight has the dtype F32 or F64,
// indices I64 or I32.
//
// The error is a *ValueError if an index is negative or not below rows, or if a dtype or the rank of
// weight is invalid, a *LimitError, the error of ctx, or one of package tensor.
func (e *Engine) Embedding(ctx context.Context, weight, indices *tensor.Tensor) (*tensor.Tensor, error) {
	if err := checkWeight(ctx, "embedding", weight); err != nil {
		return nil, err
	}
	if weight.DType() == tensor.F32 {
		return embedding[float32](e, weight, indices)
	}
	return embedding[float64](e, weight, indices)
}

// checkWeight returns the error of ctx if it has ended, a *ValueError unless weight is a matrix of
// F32 or F64, and otherwise nil. name is that of the operator.
func checkWeight(ctx context.Context, name string, weight *tensor.Tensor) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if weight.Rank() != 2 {
		return valueErrorf("'weight' must be 2-D")
	}
	return checkFloat(name, weight)
}

// embedding is Embedding for the dtype of T.
func embedding[T floatNum](e *Engine, weight, indices *tensor.Tensor) (*tensor.Tensor, error) {
	rows, width := weight.Shape()[0], weight.Shape()[1]
	list, listOwner, err := indexList(e, "indices", indices, rows)
	if err != nil {
		return nil, err
	}
	out, to, err := newTensor[T](e, append(slices.Clone(indices.Shape()), width)...)
	if err != nil {
		return nil, err
	}
	table, owner, err := packed[T](e, weight)
	if err != nil {
		return nil, err
	}
	for k, row := range list {
		copy(to[k*width:][:width], table[int(row)*width:])
	}
	keepAlive(listOwner, owner)
	return out, nil
}

// indexList returns the elements of t, of I64 or I32, in row-major order, and the tensor that owns
// their memory. name is that of the argument. The error is a *ValueError for another dtype and for
// an element that is negative or not below limit, a *LimitError, or one of package tensor.
func indexList(e *Engine, name string, t *tensor.Tensor, limit int) ([]int64, *tensor.Tensor, error) {
	list, owner, err := integerList(e, name, t)
	if err != nil {
		return nil, nil, err
	}
	for _, index := range list {
		if index < 0 || index >= int64(limit) {
			return nil, nil, valueErrorf("index out of range in self: %d is not in [0, %d)", index, limit)
		}
	}
	return list, owner, nil
}

// integerList is indexList without a limit.
func integerList(e *Engine, name string, t *tensor.Tensor) ([]int64, *tensor.Tensor, error) {
	switch t.DType() {
	case tensor.I64:
		return packed[int64](e, t)
	case tensor.I32:
		from, owner, err := packed[int32](e, t)
		if err != nil {
			return nil, nil, err
		}
		if err := e.checkSize(tensor.I64, t.Shape()); err != nil {
			return nil, nil, err
		}
		list := make([]int64, len(from))
		for i, v := range from {
			list[i] = int64(v)
		}
		keepAlive(owner)
		return list, nil, nil
	}
	return nil, nil, valueErrorf("Expected %s to have one of the following scalar types: Long, Int; but got %s instead",
		name, torchNames[t.DType()])
}

// EmbeddingBackward returns the gradient of a weight with that number of rows, for a call of
// Embedding with these indices, as a new contiguous tensor. grad is the gradient of the result, with
// the dtype F32 or F64. The error is a *ValueError if grad does not have the shape of such a result,
// or if rows is negative; otherwise it is one of those of Embedding.
func (e *Engine) EmbeddingBackward(ctx context.Context, grad, indices *tensor.Tensor,
	rows int) (*tensor.Tensor, error) {
	if err := checkEmbeddingGrad(ctx, grad, indices, rows); err != nil {
		return nil, err
	}
	if grad.DType() == tensor.F32 {
		return embeddingBackward[float32](e, grad, indices, rows)
	}
	return embeddingBackward[float64](e, grad, indices, rows)
}

// checkEmbeddingGrad returns the error of ctx if it has ended, a *ValueError unless grad can be the
// gradient of the result of Embedding with these indices and a weight of that number of rows, and
// otherwise nil.
func checkEmbeddingGrad(ctx context.Context, grad, indices *tensor.Tensor, rows int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if rows < 0 {
		return valueErrorf("a weight cannot have %d rows", rows)
	}
	if err := checkFloat("embedding", grad); err != nil {
		return err
	}
	if last := grad.Rank() - 1; last < 0 || !slices.Equal(grad.Shape()[:last], indices.Shape()) {
		return valueErrorf("the gradient of embedding has the shape %v, which does not fit indices of the shape %v",
			grad.Shape(), indices.Shape())
	}
	return nil
}

// embeddingBackward is EmbeddingBackward for the dtype of T.
func embeddingBackward[T floatNum](e *Engine, grad, indices *tensor.Tensor, rows int) (*tensor.Tensor, error) {
	list, listOwner, err := indexList(e, "indices", indices, rows)
	if err != nil {
		return nil, err
	}
	from, owner, err := packed[T](e, grad)
	if err != nil {
		return nil, err
	}
	width := grad.Shape()[grad.Rank()-1]
	out, to, err := newTensor[T](e, rows, width)
	if err != nil {
		return nil, err
	}
	clear(to)
	for k, row := range list {
		addRow(to[int(row)*width:][:width], from[k*width:], 1)
	}
	keepAlive(listOwner, owner)
	return out, nil
}

// addRow adds factor·row[j] to to[j] for each j. row must be at least as long as to.
func addRow[T floatNum](to, row []T, factor T) {
	row = row[:len(to)]
	for j := range to {
		to[j] += factor * row[j]
	}
}

// EmbeddingSparseBackward returns what EmbeddingBackward returns, as a sparse tensor of shape [rows,
// width] that lists the rows of grad in the order of indices, even if an index occurs repeatedly.
// Its values share the memory of grad if grad is contiguous; neither may then be modified. The
// errors are those of EmbeddingBackward.
func (e *Engine) EmbeddingSparseBackward(ctx context.Context, grad, indices *tensor.Tensor,
	rows int) (*tensor.Sparse, error) {
	if err := checkEmbeddingGrad(ctx, grad, indices, rows); err != nil {
		return nil, err
	}
	list, owner, err := indexList(e, "indices", indices, rows)
	if err != nil {
		return nil, err
	}
	if grad, err = e.contiguous(grad); err != nil {
		return nil, err
	}
	width := grad.Shape()[grad.Rank()-1]
	shape, strides := []int{len(list), width}, []int{width, 1}
	values, err := tensor.Strided(grad.Storage(), grad.DType(), shape, strides, grad.Offset())
	if err != nil {
		return nil, err
	}
	return e.sparseRows(list, owner, values, rows)
}

// sparseRows returns a sparse tensor of shape [rows, width] that lists the rows of values, of shape
// [len(list), width], at the row numbers in list, whose memory belongs to owner. It keeps values and
// copies list. The errors are those of newTensor and of tensor.NewSparse.
func (e *Engine) sparseRows(list []int64, owner, values *tensor.Tensor, rows int) (*tensor.Sparse, error) {
	positions, to, err := newTensor[int64](e, 1, len(list))
	if err != nil {
		return nil, err
	}
	copy(to, list)
	keepAlive(owner)
	return tensor.NewSparse(positions, values, rows, values.Shape()[1])
}
