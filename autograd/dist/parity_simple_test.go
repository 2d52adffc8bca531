package dist_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// sparseLeaf returns a sparse leaf of shape 3 by 3 with the values 3.2, 4.1 and 5.3, the one that
// PyTorch's tests use, with elements of the type T. It panics on an error.
func sparseLeaf[T float32 | float64](requiresGrad bool) variable {
	indices, err := tensor.FromSlice([]int64{0, 1, 1, 2, 0, 2}, 2, 3)
	if err != nil {
		panic(err)
	}
	values, err := tensor.FromSlice([]T{3.2, 4.1, 5.3}, 3)
	if err != nil {
		panic(err)
	}
	s, err := tensor.NewSparse(indices, values, 3, 3)
	if err != nil {
		panic(err)
	}
	x := autograd.New(autograd.Sparse(s))
	if requiresGrad {
		if err := x.RequireGrad(); err != nil {
			panic(err)
		}
	}
	return x
}

// kind makes the tensors of a case.
type kind struct {
	dense bool
	leaf  func(requiresGrad bool) variable
}

var (
	dense = kind{true, func(requiresGrad bool) variable {
		if requiresGrad {
			return random(3, 3)
		}
		return autograd.Constant(randomTensor[float32](3, 3))
	}}
	sparse = kind{false, sparseLeaf[float32]}
)

// bothKinds runs a case with dense tensors and, under the name of PyTorch's class for them, with sparse
// ones.
func bothKinds(t *testing.T, name string, s func(k kind) script) {
	t.Helper()
	inOneProcess(t, "dist_autograd/DistAutogradTest."+name, s(dense))
	inOneProcess(t, "dist_autograd/TensorPipeAgentDistAutogradTest."+name+"_sparse", s(sparse))
}

// require requires that x is dense or sparse as those of k.
func (k kind) require(t require.TestingT, x variable) {
	require.Equal(t, k.dense, x.Tensor() != nil, "%v", x)
	require.Equal(t, k.dense, x.Sparse() == nil, "%v", x)
}

// sum returns the sum of x, which must be of the kind k.
func (k kind) sum(t require.TestingT, ctx context.Context, x variable) variable {
	k.require(t, x)
	return sum(t, ctx, x)
}

// simpleBackward adds two tensors on the worker to in each mode, and requires the gradients of the
// local pass.
func simpleBackward(t require.TestingT, w *worker, k kind, to agent.To) {
	t1, t2 := k.leaf(true), k.leaf(true)
	var grads []autograd.Value
	for _, m := range []mode{local, rpcSync, remote} {
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			loss := k.sum(t, ctx, exec(t, ctx, w, m, to, addStep(t1, t2)))
			grads = verifyBackwards(t, ctx, m, c, grads, []variable{loss}, t1, t2)
		})
	}
}

// TestParityBackwardSimple has the cases in which workers call the next worker, and themselves.
func TestParityBackwardSimple(t *testing.T) {
	bothKinds(t, "test_backward_simple", func(k kind) script {
		return func(t require.TestingT, w *worker) { simpleBackward(t, w, k, w.next()) }
	})
	bothKinds(t, "test_backward_simple_self", func(k kind) script {
		return func(t require.TestingT, w *worker) { simpleBackward(t, w, k, w.Self().To()) }
	})
}
