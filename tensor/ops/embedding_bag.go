package ops

import (
	"context"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// BagMode is how EmbeddingBag combines the rows of a bag.
type BagMode uint8

// The modes, with PyTorch's numbers.
const (
	BagSum BagMode = iota
	BagMean
)

// BagOptions has the options of EmbeddingBag.
type BagOptions struct {
	Mode BagMode

	// IncludeLastOffset means that the last offset is not the start of a bag but the end of the last one.
	IncludeLastOffset bool
}

// EmbeddingBag returns the sum or the mean of the rows of weight, of shape [rows, width], for each
// bag of indices, as a new contiguous tensor of shape [bags, width]. The result for an empty bag is
// 0. weight has the dtype F32 or F64, indices and offsets I64 or I32.
//
// If indices has two dimensions, each row is a bag and offsets must be nil. If it has one, bag b
// begins at offsets[b] and ends where the next one begins, the last at the end of indices;
// BagOptions.IncludeLastOffset changes that. offsets begins with 0 and does not decrease.
// perSampleWeights is nil, or has the shape of indices and the dtype of weight: each row is
// multiplied by its element before rows are added, for BagSum only.
//
// The error is a *ValueError if an index is negative or not below rows, or if an argument is
// invalid, a *LimitError, the error of ctx, or one of package tensor.
func (e *Engine) EmbeddingBag(ctx context.Context, weight, indices, offsets,
	perSampleWeights *tensor.Tensor, o BagOptions) (*tensor.Tensor, error) {
	if err := checkWeight(ctx, "embedding_bag", weight); err != nil {
		return nil, err
	}
	if weight.DType() == tensor.F32 {
		return embeddingBag[float32](e, weight, indices, offsets, perSampleWeights, o)
	}
	return embeddingBag[float64](e, weight, indices, offsets, perSampleWeights, o)
}

// embeddingBag is EmbeddingBag for the dtype of T.
func embeddingBag[T floatNum](e *Engine, weight, indices, offsets, perSampleWeights *tensor.Tensor,
	o BagOptions) (*tensor.Tensor, error) {
	rows, width := weight.Shape()[0], weight.Shape()[1]
	b, err := newBags[T](e, weight, indices, offsets, perSampleWeights, rows, o)
	if err != nil {
		return nil, err
	}
	table, owner, err := packed[T](e, weight)
	if err != nil {
		return nil, err
	}
	out, to, err := newTensor[T](e, b.count(), width)
	if err != nil {
		return nil, err
	}
	clear(to)
	for bag := range b.count() {
		sum := to[bag*width:][:width]
		for k := b.starts[bag]; k < b.starts[bag+1]; k++ {
			addRow(sum, table[int(b.list[k])*width:], b.factor(bag, k))
		}
	}
	keepAlive(owner, b.owners[0], b.owners[1])
	return out, nil
}

// bags is the indices of a call of EmbeddingBag, checked. Its slices are valid while the tensors in
// owners are alive.
type bags[T floatNum] struct {
	list    []int64 // row numbers
	starts  []int   // of the bags in list, and the end of the last one
	weights []T     // per sample, or nil
	mean    bool
	owners  [2]*tensor.Tensor
}

// newBags returns the bags of a call of EmbeddingBag with these arguments. like is the weight, or
// another tensor of its dtype, which is that of T; rows is the number of rows of the weight. The
// errors are those of EmbeddingBag.
func newBags[T floatNum](e *Engine, like, indices, offsets, perSampleWeights *tensor.Tensor, rows int,
	o BagOptions) (*bags[T], error) {
	b := &bags[T]{mean: o.Mode == BagMean}
	if o.Mode > BagMean {
		return nil, valueErrorf("%d is not a mode of embedding_bag: want sum or mean", o.Mode)
	}
	var err error
	if b.list, b.owners[0], err = indexList(e, "indices", indices, rows); err != nil {
		return nil, err
	}
	if b.starts, err = bagStarts(e, indices, offsets, o.IncludeLastOffset); err != nil {
		return nil, err
	}
	if perSampleWeights == nil {
		return b, nil
	}
	if b.mean {
		return nil, valueErrorf("embedding_bag: per_sample_weights was not None. " +
			"per_sample_weights is only supported for mode='sum' (got mode='mean').")
	}
	if err := sameDType(like, perSampleWeights); err != nil {
		return nil, err
	}
	if !slices.Equal(perSampleWeights.Shape(), indices.Shape()) {
		return nil, valueErrorf("embedding_bag: If per_sample_weights (%v) is not None, "+
			"then it must have the same shape as the input (%v)", perSampleWeights.Shape(), indices.Shape())
	}
	b.weights, b.owners[1], err = packed[T](e, perSampleWeights)
	return b, err
}

// bagStarts returns the positions at which the bags begin, and the end of the last one, for the
// arguments of EmbeddingBag. The error is a *ValueError if ranks or offsets are invalid, a
// *LimitError, or one of package tensor.
func bagStarts(e *Engine, indices, offsets *tensor.Tensor, includeLast bool) ([]int, error) {
	switch {
	case indices.Rank() == 2 && offsets != nil:
		return nil, valueErrorf("if input is 2D, then offsets has to be None, " +
			"as input is treated is a mini-batch of fixed length sequences.")
	case indices.Rank() == 2:
		count, size := indices.Shape()[0], indices.Shape()[1]
		// Any number of empty rows needs no memory of its own.
		if err := e.checkSize(tensor.I64, []int{count, 2}); err != nil {
			return nil, err
		}
		starts := make([]int, count+1)
		for i := range starts {
			starts[i] = i * size
		}
		return starts, nil
	case indices.Rank() != 1:
		return nil, valueErrorf("input has to be 1D or 2D Tensor, but got Tensor of dimension %d", indices.Rank())
	case offsets == nil:
		return nil, valueErrorf("offsets has to be a 1D Tensor but got None")
	case offsets.Rank() != 1:
		return nil, valueErrorf("offsets has to be a 1D Tensor")
	case includeLast && offsets.Len() == 0:
		return nil, valueErrorf("include_last_offset: number of offset should be at least 1")
	}
	list, owner, err := integerList(e, "offsets", offsets)
	if err != nil {
		return nil, err
	}
	starts, err := checkedOffsets(list, indices.Shape()[0])
	if err != nil {
		return nil, err
	}
	keepAlive(owner)
	if !includeLast && len(list) > 0 {
		return append(starts, indices.Shape()[0]), nil
	}
	if len(starts) == 0 {
		starts = append(starts, 0) // no bags
	}
	return starts, nil
}

// checkedOffsets returns the offsets as ints, in a new slice with capacity for one more. The error
// is a *ValueError unless they begin with 0, do not decrease, and are at most n.
func checkedOffsets(offsets []int64, n int) ([]int, error) {
	starts := make([]int, 0, len(offsets)+1)
	last := int64(0)
	for i, offset := range offsets {
		switch {
		case i == 0 && offset != 0:
			return nil, valueErrorf("offsets[0] has to be 0, i.e., the first sequence in the mini-batch "+
				"has to start from position 0. However, got %d", offset)
		case offset < last:
			return nil, valueErrorf("offsets must not decrease, but offsets[%d] is %d, after %d", i, offset, last)
		case offset > int64(n):
			return nil, valueErrorf("offsets[%d] can not be greater than input's length %d but got offsets[%d] of %d",
				i, n, i, offset)
		}
		last = offset
		starts = append(starts, int(offset))
	}
	return starts, nil
}

// count returns the number of bags.
func (b *bags[T]) count() int { return len(b.starts) - 1 }

// end returns the end of the last bag in the list.
func (b *bags[T]) end() int { return b.starts[b.count()] }

// factor returns the number by which the row for position k of the list, in that bag, is multiplied.
func (b *bags[T]) factor(bag, k int) T {
	switch {
	case b.weights != nil:
		return b.weights[k]
	case b.mean:
		return 1 / T(b.starts[bag+1]-b.starts[bag])
	}
	return 1
}
