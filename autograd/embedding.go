package autograd

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// Embedding returns the rows of weight, of shape [rows, n], that indices, I64 of any shape, selects, in
// the shape [indices..., n]. The gradient of weight is sparse if sparse is true.
func Embedding(ctx context.Context, weight, indices *Variable, sparse bool) (*Variable, error) {
	if err := dense("embedding", weight, indices); err != nil {
		return nil, err
	}
	at, rows := indices.value.dense, 0
	t, err := engineOf(ctx).Embedding(ctx, weight.value.dense, at)
	if err != nil {
		return nil, opError("embedding", err)
	}
	rows = weight.Shape()[0]
	n := newNode(ctx, "EmbeddingBackward0", weight)
	if n != nil {
		s := n.save(indices)
		n.backward = func(ctx context.Context, grads, out []Value) error {
			if _, err := s.get(); err != nil {
				return err
			}
			var err error
			if sparse {
				out[0].sparse, err = engineOf(ctx).EmbeddingSparseBackward(ctx, grads[0].dense, at, rows)
			} else {
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
// the shape [bags, n].
func EmbeddingBag(ctx context.Context, weight *Variable, b Bags) (*Variable, error) {
	if err := dense("embedding_bag", weight, b.Indices); err != nil {
		return nil, err
	}
	var offsets, factors *tensor.Tensor
	args := []*Variable{weight}
	if b.Offsets != nil {
		if err := dense("embedding_bag", b.Offsets); err != nil {
			return nil, err
		}
		offsets = b.Offsets.value.dense
	}
	if b.PerSampleWeights != nil {
		if err := dense("embedding_bag", b.PerSampleWeights); err != nil {
			return nil, err
		}
		factors = b.PerSampleWeights.value.dense
		args = append(args, b.PerSampleWeights)
	}
	indices := b.Indices.value.dense
	t, err := engineOf(ctx).EmbeddingBag(ctx, weight.value.dense, indices, offsets, factors, b.Options)
	if err != nil {
		return nil, opError("embedding_bag", err)
	}
	n := newNode(ctx, "EmbeddingBagBackward0", args...)
	if n != nil {
		rows := weight.Shape()[0]
		table, at := n.saveIf(len(args) > 1 && n.needs(1), weight), n.save(b.Indices)
		n.backward = func(ctx context.Context, grads, out []Value) error {
			if _, err := at.get(); err != nil {
				return err
			}
			e, g := engineOf(ctx), grads[0].dense
			var err error
			switch {
			case !n.needs(0):
			case b.Sparse:
				out[0].sparse, err = e.EmbeddingBagSparseBackward(ctx, g, indices, offsets, factors, rows, b.Options)
			default:
				out[0].dense, err = e.EmbeddingBagBackward(ctx, g, indices, offsets, factors, rows, b.Options)
			}
			if err != nil || table.version == nil {
				return err
			}
			w, err := table.get()
			if err != nil {
				return err
			}
			out[1].dense, err = e.EmbeddingBagWeightsBackward(ctx, g, w.dense, indices, offsets, b.Options.IncludeLastOffset)
			return err
		}
	}
	return result(t, n), nil
}
