package autograd

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// Embedding returns the rows of weight, of shape [rows, n], that indices, I64 of any shape, selects, in
// the shape [indices..., n], in new memory. Both are dense. The gradient of weight is sparse if sparse is
// true.
func Embedding(ctx context.Context, weight, indices *Variable, sparse bool) (*Variable, error) {
	if err := dense("embedding", weight, indices); err != nil {
		return nil, err
	}
	at := indices.value.dense
	t, err := engineOf(ctx).Embedding(ctx, weight.value.dense, at)
	if err != nil {
		return nil, opError("embedding", err)
	}
	n := newNode(ctx, "EmbeddingBackward0", weight)
	if n != nil {
		s, rows := n.save(indices), weight.Shape()[0]
		n.backward = func(ctx context.Context, grads, out []Value) error {
			_, err := s.get()
			switch {
			case err != nil:
			case sparse:
				out[0].sparse, err = engineOf(ctx).EmbeddingSparseBackward(ctx, grads[0].dense, at, rows)
			default:
				out[0].dense, err = engineOf(ctx).EmbeddingBackward(ctx, grads[0].dense, at, rows)
			}
			return err
		}
	}
	return result(t, n), nil
}

// Bags are the arguments of EmbeddingBag beside the table. Offsets and PerSampleWeights may be nil.
type Bags struct {
	Indices          *Variable // I64: [n] with Offsets, or [bags, n]
	Offsets          *Variable // I64 of shape [bags]: where each bag begins in Indices
	PerSampleWeights *Variable // factors of the rows, of the shape of Indices, for sums
	Options          ops.BagOptions
	Sparse           bool // the gradient of the table is sparse
}

// EmbeddingBag returns the sum or the mean of the rows of weight, of shape [rows, n], in each bag, in
// the shape [bags, n], in new memory. All arguments are dense.
func EmbeddingBag(ctx context.Context, weight *Variable, b Bags) (*Variable, error) {
	offsets, err := optional("embedding_bag", b.Offsets)
	if err != nil {
		return nil, err
	}
	factors, err := optional("embedding_bag", b.PerSampleWeights)
	if err != nil {
		return nil, err
	}
	if err := dense("embedding_bag", weight, b.Indices); err != nil {
		return nil, err
	}
	indices := b.Indices.value.dense
	t, err := engineOf(ctx).EmbeddingBag(ctx, weight.value.dense, indices, offsets, factors, b.Options)
	if err != nil {
		return nil, opError("embedding_bag", err)
	}
	n := newNode(ctx, "EmbeddingBagBackward0", weight, b.PerSampleWeights)
	if n != nil {
		rows, table := weight.Shape()[0], n.saveIf(n.needs(1), weight)
		all := n.saveAll(b.Indices, b.Offsets, b.PerSampleWeights)
		n.backward = func(ctx context.Context, grads, out []Value) error {
			w, err := table.getDense()
			if err != nil {
				return err
			}
			if err := checkSaved(all); err != nil {
				return err
			}
			e, g := engineOf(ctx), grads[0].dense
			if w != nil {
				last := b.Options.IncludeLastOffset
				if out[1].dense, err = e.EmbeddingBagWeightsBackward(ctx, g, w, indices, offsets, last); err != nil {
					return err
				}
			}
			switch {
			case !n.needs(0):
			case b.Sparse:
				out[0].sparse, err = e.EmbeddingBagSparseBackward(ctx, g, indices, offsets, factors, rows, b.Options)
			default:
				out[0].dense, err = e.EmbeddingBagBackward(ctx, g, indices, offsets, factors, rows, b.Options)
			}
			return err
		}
	}
	return result(t, n), nil
}

// optional returns the tensor of x, or nil if x is nil. The error is one of dense.
func optional(op string, x *Variable) (*tensor.Tensor, error) {
	if x == nil {
		return nil, nil
	}
	return x.value.dense, dense(op, x)
}
