package ops_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops/gonumblas"
)

var errNoMemory = errors.New("no memory")

// limitedMemory fails after a number of allocations.
type limitedMemory struct{ left int }

func (m *limitedMemory) Alloc(size int) (*tensor.Storage, error) {
	if m.left == 0 {
		return nil, errNoMemory
	}
	m.left--
	return tensor.Heap{}.Alloc(size)
}

// Whichever of its allocations fails, an operator returns the error of the allocator.
func TestAllocatorErrors(t *testing.T) {
	s := newSource(t)
	d := tensor.F32
	x, y := s.tensor(d, "strided", 4, 3), s.tensor(d, "strided", 4, 3)
	batch := s.tensor(d, "strided", 2, 4, 3)
	classes, indices := s.indexTensor(tensor.I64, "strided", 3, 4), s.indexTensor(tensor.I64, "strided", 4, 2, 2)
	bias, row, one := s.tensor(d, "strided", 4), s.tensor(d, "strided", 3), tensor.Scalar(float32(1))
	samples, bagGrad := s.tensor(d, "strided", 2, 2), s.tensor(d, "strided", 2, 3)
	rowsGrad := s.tensor(d, "strided", 2, 2, 3)
	mean, sum := ops.NLLOptions{Reduction: ops.ReductionMean}, ops.BagOptions{}
	for name, f := range map[string]func(e *ops.Engine, ctx context.Context) error{
		"MatMul": func(e *ops.Engine, ctx context.Context) error {
			_, err := e.MatMul(ctx, x, transpose(t, y, 0, 1))
			return err
		},
		"Bmm": func(e *ops.Engine, ctx context.Context) error {
			_, err := e.Bmm(ctx, batch, transpose(t, batch, 1, 2))
			return err
		},
		"Linear": func(e *ops.Engine, ctx context.Context) error {
			_, err := e.Linear(ctx, batch, x, bias)
			return err
		},
		"LinearBackward": func(e *ops.Engine, ctx context.Context) error {
			_, _, _, err := e.LinearBackward(ctx, transpose(t, x, 0, 1), s.tensor(d, "strided", 3, 5), s.tensor(d, "strided", 4, 5), [3]bool{true, true, true})
			return err
		},
		"MultiDot": func(e *ops.Engine, ctx context.Context) error {
			_, err := e.MultiDot(ctx, []*tensor.Tensor{row, transpose(t, x, 0, 1), bias})
			return err
		},
		"TanhBackward": func(e *ops.Engine, ctx context.Context) error {
			_, err := e.TanhBackward(ctx, x, y)
			return err
		},
		"SoftmaxBackward": func(e *ops.Engine, ctx context.Context) error {
			_, err := e.SoftmaxBackward(ctx, x, y, 0)
			return err
		},
		"NLLLoss": func(e *ops.Engine, ctx context.Context) error {
			_, _, err := e.NLLLoss(ctx, x, classes, row, mean)
			return err
		},
		"NLLLossBackward": func(e *ops.Engine, ctx context.Context) error {
			_, err := e.NLLLossBackward(ctx, bias, x, classes, row, ops.NLLOptions{}, one)
			return err
		},
		"CrossEntropy": func(e *ops.Engine, ctx context.Context) error {
			_, _, _, err := e.CrossEntropy(ctx, x, classes, row, ops.NLLOptions{})
			return err
		},
		"CrossEntropyBackward": func(e *ops.Engine, ctx context.Context) error {
			_, err := e.CrossEntropyBackward(ctx, bias, x, classes, row, ops.NLLOptions{}, one)
			return err
		},
		"MSELoss": func(e *ops.Engine, ctx context.Context) error {
			_, err := e.MSELoss(ctx, x, row, ops.ReductionNone)
			return err
		},
		"MSELossBackward": func(e *ops.Engine, ctx context.Context) error {
			_, _, err := e.MSELossBackward(ctx, x, y, row, ops.ReductionNone, [2]bool{true, true})
			return err
		},
		"Embedding": func(e *ops.Engine, ctx context.Context) error {
			_, err := e.Embedding(ctx, x, indices)
			return err
		},
		"EmbeddingBackward": func(e *ops.Engine, ctx context.Context) error {
			_, err := e.EmbeddingBackward(ctx, rowsGrad, indices, 4)
			return err
		},
		"EmbeddingSparseBackward": func(e *ops.Engine, ctx context.Context) error {
			_, err := e.EmbeddingSparseBackward(ctx, rowsGrad, indices, 4)
			return err
		},
		"EmbeddingBag": func(e *ops.Engine, ctx context.Context) error {
			_, err := e.EmbeddingBag(ctx, x, indices, nil, samples, sum)
			return err
		},
		"EmbeddingBagBackward": func(e *ops.Engine, ctx context.Context) error {
			_, err := e.EmbeddingBagBackward(ctx, bagGrad, indices, nil, samples, 4, sum)
			return err
		},
		"EmbeddingBagSparseBackward": func(e *ops.Engine, ctx context.Context) error {
			_, err := e.EmbeddingBagSparseBackward(ctx, bagGrad, indices, nil, samples, 4, sum)
			return err
		},
		"EmbeddingBagWeightsBackward": func(e *ops.Engine, ctx context.Context) error {
			_, err := e.EmbeddingBagWeightsBackward(ctx, bagGrad, x, indices, nil, false)
			return err
		},
	} {
		for _, gemm := range []ops.Gemm{nil, gonumblas.Gemm{}} {
			t.Run(name, func(t *testing.T) {
				allowed := 0
				for ; ; allowed++ {
					err := f(&ops.Engine{Alloc: &limitedMemory{left: allowed}, Gemm: gemm}, t.Context())
					if err == nil {
						break
					}
					require.ErrorIs(t, err, errNoMemory)
				}
				require.NotZero(t, allowed, "the operator does not use the allocator")
			})
		}
	}
}
