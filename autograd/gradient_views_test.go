package autograd_test

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/autograd"
)

// viewCases returns operators whose results are views.
func viewCases() []gradientCase {
	var all []gradientCase
	add := func(name string, shape, empty []int, f func(ctx context.Context, x *variable) (*variable, error)) {
		all = append(all, both(name, one(f), shapes(shape), shapes(empty)))
	}
	add("reshape", []int{2, 3}, []int{0, 3}, func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Reshape(ctx, x, x.Tensor().Len())
	})
	add("reshape with -1", []int{2, 3}, []int{0, 3}, func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Reshape(ctx, x, -1, 3, 1)
	})
	add("view", []int{2, 3}, []int{0, 3}, func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.View(ctx, x, x.Shape()[0], 1, 3)
	})
	add("transpose", []int{2, 3, 4}, []int{0, 3, 4}, func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Transpose(ctx, x, 0, -1)
	})
	add("permute", []int{2, 3, 4}, []int{0, 3, 4}, func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Permute(ctx, x, 2, 0, -2)
	})
	add("t", []int{2, 3}, []int{0, 3}, autograd.T)
	add("t of a vector", []int{3}, []int{0}, autograd.T)
	add("squeeze", []int{2, 1, 3, 1}, []int{0, 1, 3, 1}, func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Squeeze(ctx, x)
	})
	squeezed, none := []int{2, 1, 3, 1}, []int{0, 1, 3, 1}
	add("squeeze of some", squeezed, none, func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Squeeze(ctx, x, -1, 2)
	})
	add("unsqueeze", []int{2, 3}, []int{0, 3}, func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Unsqueeze(ctx, x, -2)
	})
	add("expand", []int{3, 1}, []int{0, 1}, func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Expand(ctx, x, 2, -1, 4)
	})
	add("narrow", []int{3, 4}, []int{0, 4}, func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Narrow(ctx, x, -1, -3, 2)
	})
	add("narrow to nothing", []int{3, 4}, []int{3, 0}, func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Narrow(ctx, x, 1, 0, 0)
	})
	add("select", []int{3, 4}, []int{0, 4}, func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Select(ctx, x, 1, -2)
	})
	all = append(all, withEmpty("split", func(ctx context.Context, xs []*variable) ([]*variable, error) {
		return autograd.Split(ctx, xs[0], 3, -1)
	}, []int{2, 5}), withEmpty("split of rows", func(ctx context.Context, xs []*variable) ([]*variable, error) {
		return autograd.Split(ctx, xs[0], 2, 0)
	}, []int{3, 2}))
	return all
}

// listCases returns operators that join tensors.
func listCases() []gradientCase {
	stack := func(ctx context.Context, xs []*variable) (*variable, error) { return autograd.Stack(ctx, xs, -2) }
	cat := func(ctx context.Context, xs []*variable) (*variable, error) { return autograd.Cat(ctx, xs, -1) }
	rows := func(ctx context.Context, xs []*variable) (*variable, error) { return autograd.Cat(ctx, xs, 0) }
	same := func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Cat(ctx, []*variable{x, x}, 0)
	}
	return []gradientCase{
		withEmpty("stack", many(stack), []int{2, 3}, []int{2, 3}, []int{2, 3}),
		withEmpty("cat", many(cat), []int{2, 3}, []int{2, 1}),
		withEmpty("cat of one tensor twice", one(same), []int{2, 3}),
		both("cat of rows", many(rows), shapes([]int{2, 3}, []int{1, 3}), shapes([]int{2, 3}, []int{0, 3})),
	}
}

// inPlaceCases returns changes in place of copies of the first argument.
func inPlaceCases() (all []gradientCase) {
	for name, f := range map[string]func(_ context.Context, x, y *variable) error{
		"add_": func(ctx context.Context, x, y *variable) error { return autograd.AddInPlace(ctx, x, y, 2.5) },
		"sub_": func(ctx context.Context, x, y *variable) error { return autograd.SubInPlace(ctx, x, y, 2) },
		"mul_": autograd.MulInPlace,
		"div_": autograd.DivInPlace,
	} {
		apply := two(func(ctx context.Context, x, y *variable) (*variable, error) {
			z, err := autograd.Clone(ctx, x)
			if err != nil {
				return nil, err
			}
			return z, f(ctx, z, y)
		})
		all = append(all, withEmpty(name, apply, []int{2, 3}, []int{2, 3}),
			both(name+" with one row", apply, shapes([]int{2, 3}, []int{3}), shapes([]int{0, 3}, []int{3})))
	}
	return all
}
