package autograd_test

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// integers returns a Variable of I64 with the given elements.
func integers(values []int64, shape ...int) *variable {
	t, err := tensor.FromSlice(values, shape...)
	if err != nil {
		panic(err)
	}
	return autograd.Constant(t)
}

// constant returns a Variable of F64 with the given elements, which requires no gradient.
func constant(values []float64, shape ...int) *variable {
	t, err := tensor.FromSlice(values, shape...)
	if err != nil {
		panic(err)
	}
	return autograd.Constant(t)
}

// classCases returns losses.
func classCases() []gradientCase {
	var all []gradientCase
	ignored, weights := int64(1), constant([]float64{0.5, 2, 1}, 3)
	type loss = func(ctx context.Context, x, target, weight *variable, o ops.NLLOptions) (*variable, error)
	for name, f := range map[string]loss{"nll_loss": autograd.NLLLoss, "cross_entropy": autograd.CrossEntropy} {
		for _, reduction := range []ops.Reduction{ops.ReductionNone, ops.ReductionMean, ops.ReductionSum} {
			add := func(with string, weight *variable, ignore *int64, target *variable, shape, empty []int) {
				apply := func(target *variable) listFunc {
					return one(func(ctx context.Context, x *variable) (_ *variable, err error) {
						target, weight := target, weight
						if target, err = autograd.To(ctx, target, x.Value().Device()); err != nil {
							return nil, err
						}
						if weight != nil {
							if weight, err = autograd.To(ctx, weight, x.Value().Device()); err != nil {
								return nil, err
							}
						}
						return f(ctx, x, target, weight, ops.NLLOptions{Reduction: reduction, IgnoreIndex: ignore})
					})
				}
				none := append([]int{0}, empty[2:]...)
				all = append(all, gradientCase{fmt.Sprintf("%s with %s and reduction %d", name, with, reduction),
					operands{shapes(shape), apply(target)}, operands{shapes(empty), apply(integers(nil, none...))}})
			}
			target := integers([]int64{2, 0, 1, 1}, 4)
			add("classes", nil, nil, target, []int{4, 3}, []int{0, 3})
			add("weights", weights, nil, target, []int{4, 3}, []int{0, 3})
			add("an ignored class", weights, &ignored, target, []int{4, 3}, []int{0, 3})
			add("one row", weights, nil, integers([]int64{2}), []int{3}, []int{0, 3})
			add("rank 3", weights, nil, integers([]int64{2, 0, 1, 1}, 2, 2), []int{2, 3, 2}, []int{0, 3, 2})
		}
	}
	for _, reduction := range []ops.Reduction{ops.ReductionNone, ops.ReductionMean, ops.ReductionSum} {
		apply := two(func(ctx context.Context, x, y *variable) (*variable, error) {
			return autograd.MSELoss(ctx, x, y, reduction)
		})
		name := fmt.Sprintf("mse_loss with reduction %d", reduction)
		all = append(all, withEmpty(name, apply, []int{2, 3}, []int{2, 3}),
			both(name+" and broadcasting", apply, shapes([]int{2, 3}, []int{3}), shapes([]int{2, 0}, []int{0})))
	}
	return all
}

// tableCases returns operators on the rows of a table.
func tableCases() []gradientCase {
	var all []gradientCase
	embedding := func(sparse bool, indices *variable) listFunc {
		return one(func(ctx context.Context, x *variable) (*variable, error) {
			return autograd.Embedding(ctx, x, indices, sparse)
		})
	}
	bag := func(b autograd.Bags) listFunc {
		return many(func(ctx context.Context, xs []*variable) (*variable, error) {
			if len(xs) > 1 {
				b.PerSampleWeights = xs[1]
			}
			return autograd.EmbeddingBag(ctx, xs[0], b)
		})
	}
	indices, offsets := integers([]int64{3, 0, 3, 1, 1}, 5), integers([]int64{0, 2, 2}, 3)
	table := []int{4, 3}
	for _, sparse := range []bool{false, true} {
		kind := fmt.Sprintf(", sparse %v", sparse)
		all = append(all, gradientCase{"embedding" + kind,
			operands{shapes(table), embedding(sparse, integers([]int64{3, 0, 3, 1}, 2, 2))},
			operands{shapes([]int{4, 0}), embedding(sparse, indices)}},
			gradientCase{"embedding of no index" + kind,
				operands{shapes(table), embedding(sparse, integers(nil, 0, 2))},
				operands{shapes([]int{0, 3}), embedding(sparse, integers(nil, 0))}})
		for _, mode := range []ops.BagMode{ops.BagSum, ops.BagMean} {
			o := ops.BagOptions{Mode: mode}
			list := bag(autograd.Bags{Indices: indices, Offsets: offsets, Options: o, Sparse: sparse})
			zeros := integers([]int64{0, 0}, 2)
			none := bag(autograd.Bags{Indices: integers(nil, 0), Offsets: zeros, Options: o, Sparse: sparse})
			rows := bag(autograd.Bags{Indices: integers([]int64{3, 0, 3, 1}, 2, 2), Options: o, Sparse: sparse})
			last := bag(autograd.Bags{Indices: indices, Offsets: integers([]int64{0, 2, 5}, 3), Sparse: sparse,
				Options: ops.BagOptions{Mode: mode, IncludeLastOffset: true}})
			name := fmt.Sprintf("embedding_bag with mode %d%s", mode, kind)
			all = append(all, gradientCase{name, operands{shapes(table), list}, operands{shapes([]int{0, 3}), none}},
				both(name+" of rank 2", rows, shapes(table), shapes([]int{4, 0})),
				both(name+" with the last offset", last, shapes(table), shapes([]int{4, 0})))
		}
		weighted := bag(autograd.Bags{Indices: indices, Offsets: offsets, Sparse: sparse})
		all = append(all, both("embedding_bag with weights"+kind, weighted,
			shapes(table, []int{5}), shapes([]int{4, 0}, []int{5})))
	}
	return all
}
