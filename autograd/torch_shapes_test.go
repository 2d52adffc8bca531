package autograd_test

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
)

// addViews adds operators whose results are views.
func (s *torchSource) addViews() {
	rank := 1 + s.random.IntN(3)
	a, b := s.dim(rank), s.dim(rank)
	add := func(expression string, f func(context.Context, *variable) (*variable, error), shape ...int) {
		s.add(expression, list(f), s.leaf(shape...))
	}
	add(fmt.Sprintf("x[0].transpose(%d, %d)", a, b), func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Transpose(ctx, x, a, b)
	}, s.shape(rank)...)
	order := s.random.Perm(rank)
	order[0] -= rank * s.random.IntN(2)
	add(fmt.Sprintf("x[0].permute(%s)", python(order)), func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Permute(ctx, x, order...)
	}, s.shape(rank)...)
	add("x[0].t()", autograd.T, s.shape(rank)...)
	n, start, length := 1+s.size(), s.random.IntN(4)-1, s.random.IntN(3)
	add(fmt.Sprintf("x[0].narrow(-1, %d, %d)", start, length), func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Narrow(ctx, x, -1, start, length)
	}, 2, n)
	add(fmt.Sprintf("x[0].select(%d, %d)", a, start), func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Select(ctx, x, a, start)
	}, s.shape(rank)...)
	size := 1 + s.size()
	add(fmt.Sprintf("x[0].split(%d, %d)[0]", size, a), func(ctx context.Context, x *variable) (*variable, error) {
		parts, err := autograd.Split(ctx, x, size, a)
		if err != nil {
			return nil, err
		}
		return parts[0], nil
	}, s.shape(rank)...)
	add("x[0].reshape(-1, 2)", func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Reshape(ctx, x, -1, 2)
	}, s.size(), 2, 3)
	add("x[0].t().reshape(-1)", func(ctx context.Context, x *variable) (*variable, error) {
		y, err := autograd.T(ctx, x)
		if err != nil {
			return nil, err
		}
		return autograd.Reshape(ctx, y, -1)
	}, 2, n)
	add(fmt.Sprintf("x[0].view(%d, 2, 1)", n), func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.View(ctx, x, n, 2, 1)
	}, 2, n)
	add(fmt.Sprintf("x[0].expand(2, -1, %d)", size), func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Expand(ctx, x, 2, -1, size)
	}, n, 1)
	ones := s.partOf([]int{1, n, 1})
	add("x[0].squeeze()", func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Squeeze(ctx, x)
	}, ones...)
	add(fmt.Sprintf("x[0].squeeze(%d)", a), func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Squeeze(ctx, x, a)
	}, s.partOf([]int{1, n, 1})...)
	add(fmt.Sprintf("x[0].unsqueeze(%d)", a), func(ctx context.Context, x *variable) (*variable, error) {
		return autograd.Unsqueeze(ctx, x, a)
	}, s.shape(rank)...)
}

// addLists adds operators that join tensors.
func (s *torchSource) addLists() {
	rank := 1 + s.random.IntN(3)
	shape, dim, position := s.shape(rank), s.dim(rank), s.random.IntN(2*rank+2)-rank-1
	s.add(fmt.Sprintf("torch.stack(x, %d)", position), func(ctx context.Context, xs []*variable) (*variable, error) {
		return autograd.Stack(ctx, xs, position)
	}, s.leaf(shape...), s.leaf(shape...), s.leaf(shape...))
	other := append([]int{}, shape...)
	other[(dim+rank)%rank] = s.size()
	cat := func(ctx context.Context, xs []*variable) (*variable, error) { return autograd.Cat(ctx, xs, dim) }
	s.add(fmt.Sprintf("torch.cat(x, %d)", dim), cat, s.leaf(shape...), s.leaf(other...), s.leaf(shape...))
	s.add(fmt.Sprintf("torch.cat(x, %d)", dim), cat, s.leaf(shape...), s.leaf(0), s.leaf(other...))
}

// addLosses adds losses, with and without weights, for all reductions.
func (s *torchSource) addLosses() {
	classes, n := 2+s.size(), 1+s.size()
	ignored := s.random.Int64N(int64(classes))
	type loss = func(ctx context.Context, x, target, weight *variable, o ops.NLLOptions) (*variable, error)
	for name, f := range map[string]loss{"nll_loss": autograd.NLLLoss, "cross_entropy": autograd.CrossEntropy} {
		for reduction, number := range reductions {
			add := func(target *variable, shape ...int) {
				weight := s.leaf(classes).Detach()
				s.add(fmt.Sprintf("F.%s(x[0], x[1], reduction='%s')", name, reduction),
					func(ctx context.Context, xs []*variable) (*variable, error) {
						return f(ctx, xs[0], xs[1], nil, ops.NLLOptions{Reduction: number})
					}, s.leaf(shape...), target)
				s.add(fmt.Sprintf("F.%s(x[0], x[1], weight=x[2], ignore_index=%d, reduction='%s')", name, ignored, reduction),
					func(ctx context.Context, xs []*variable) (*variable, error) {
						return f(ctx, xs[0], xs[1], xs[2], ops.NLLOptions{Reduction: number, IgnoreIndex: &ignored})
					}, s.leaf(shape...), target, weight)
			}
			add(integers(s.indices(n, classes), n), n, classes)
			add(integers(s.indices(1, classes)), classes)
			add(integers(s.indices(2*n, classes), 2, n), 2, classes, n)
			add(integers(s.indices(4*n, classes), 2, n, 2), 2, classes, n, 2)
		}
	}
	for reduction, number := range reductions {
		shape := s.shape(2)
		s.add(fmt.Sprintf("F.mse_loss(x[0], x[1], reduction='%s')", reduction),
			pair(func(ctx context.Context, x, y *variable) (*variable, error) {
				return autograd.MSELoss(ctx, x, y, number)
			}),
			s.leaf(shape...), s.leaf(s.partOf(shape)...))
	}
}

var reductions = map[string]ops.Reduction{
	"none": ops.ReductionNone, "mean": ops.ReductionMean, "sum": ops.ReductionSum,
}

// addTables adds operators on the rows of a table.
func (s *torchSource) addTables() {
	rows, width, n := 1+s.size(), s.size(), 1+s.size()
	for sparse, is := range map[bool]string{false: "False", true: "True"} {
		s.add("F.embedding(x[1], x[0], sparse="+is+")", pair(func(ctx context.Context, x, at *variable) (*variable, error) {
			return autograd.Embedding(ctx, x, at, sparse)
		}), s.leaf(rows, width), integers(s.indices(2*n, rows), 2, n))
		for mode, number := range map[string]ops.BagMode{"sum": ops.BagSum, "mean": ops.BagMean} {
			s.add(fmt.Sprintf("F.embedding_bag(x[1], x[0], mode='%s', sparse=%s)", mode, is),
				pair(func(ctx context.Context, x, at *variable) (*variable, error) {
					b := autograd.Bags{Indices: at, Sparse: sparse, Options: ops.BagOptions{Mode: number}}
					return autograd.EmbeddingBag(ctx, x, b)
				}), s.leaf(rows, 1+width), integers(s.indices(2*n, rows), 2, n))
			for last, yes := range map[bool]string{false: "False", true: "True"} {
				o := ops.BagOptions{Mode: number, IncludeLastOffset: last}
				options := fmt.Sprintf("mode='%s', sparse=%s, include_last_offset=%s", mode, is, yes)
				s.add("F.embedding_bag(x[1], x[0], x[2], "+options+")",
					func(ctx context.Context, xs []*variable) (*variable, error) {
						b := autograd.Bags{Indices: xs[1], Offsets: xs[2], Sparse: sparse, Options: o}
						return autograd.EmbeddingBag(ctx, xs[0], b)
					}, s.leaf(rows, 1+width), integers(s.indices(2+n, rows), 2+n), integers([]int64{0, 2, int64(2 + n)}, 3))
			}
		}
		s.add("F.embedding_bag(x[1], x[0], x[2], mode='sum', per_sample_weights=x[3])",
			func(ctx context.Context, xs []*variable) (*variable, error) {
				b := autograd.Bags{Indices: xs[1], Offsets: xs[2], PerSampleWeights: xs[3], Sparse: sparse}
				return autograd.EmbeddingBag(ctx, xs[0], b)
			}, s.leaf(rows, 1+width), integers(s.indices(2+n, rows), 2+n), integers([]int64{0, 1}, 2), s.leaf(2+n))
	}
}
