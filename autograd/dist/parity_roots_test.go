package dist_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// textAt returns a reference to a text on the worker to, as one to a Variable.
func textAt(ctx context.Context, w *worker, to agent.To) variableRef {
	return rref.RemoteInvoke[variable](ctx, w.Agent, to, "identity", "foo")
}

var servingText = serving(agent.Funcs{agent.ReflectFunc("identity", func(s string) string { return s })})

// TestParityOwnedRoots has the case of passes whose root is a reference to a value of this worker.
func TestParityOwnedRoots(t *testing.T) {
	inOneProcessWith(t, "rpc/RpcTest.test_owner_rref_backward", servingText, func(t require.TestingT, w *worker) {
		var refs []variableRef
		own := func(x variable) variableRef {
			refs = append(refs, rref.Own(w.Agent, x))
			return refs[len(refs)-1]
		}
		backward := func(ctx context.Context, x variable) error {
			return dist.BackwardRef(ctx, own(x), dist.PassOptions{})
		}
		t1 := random(10, 10)
		root, err := autograd.Add(w.ctx, sum(t, w.ctx, t1), sum(t, w.ctx, t1))
		require.NoError(t, err)
		require.NoError(t, backward(w.ctx, root))
		requireSame(t, constant(2, 10, 10).Value(), t1.Grad())

		for _, twice := range []bool{false, true} {
			w.inContext(t, func(ctx context.Context, c *dist.Context) {
				f := own(sum(t, ctx, exec(t, ctx, w, rpcSync, w.at(1), addStep(t1, t1))))
				want := float32(2)
				if twice {
					require.NoError(t, dist.BackwardRef(ctx, f, dist.PassOptions{RetainGraph: true}))
					want = 4
				}
				require.NoError(t, dist.BackwardRef(ctx, f, dist.PassOptions{}))
				require.Len(t, c.Gradients(), 1)
				g, err := c.Gradient(t1)
				require.NoError(t, err)
				requireSame(t, constant(want, 10, 10).Value(), g)
			})
		}

		err = backward(w.ctx, autograd.Constant(randomTensor[float32](10)))
		require.ErrorIs(t, err, autograd.ErrNotRequired)
		require.ErrorContains(t, err, "tensors does not require grad and does not have a grad_fn")
		err = backward(w.ctx, random(10))
		require.ErrorIs(t, err, autograd.ErrNotScalar)
		require.ErrorContains(t, err, "grad can be implicitly created only for scalar outputs")
		const missing = dist.ID(100)
		_, err = missing.Context(w.Agent)
		requireNoContext(t, missing, err)
		closed, c, err := dist.WithContext(w.ctx, w.Agent)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		requireNoContext(t, c.ID(), backward(closed, sum(t, w.ctx, random(10))))
		text := textAt(w.ctx, w, w.Self().To())
		require.True(t, text.IsOwner())
		err = dist.BackwardRef(w.ctx, text, dist.PassOptions{})
		require.ErrorIs(t, err, dist.ErrRoots)
		require.ErrorContains(t, err, "RRef should contain a tensor for .backward()")
		for _, f := range append(refs, text) {
			require.NoError(t, f.Release(w.ctx))
		}
	})
}

// TestParityRemoteRoots has the case of passes whose root is a reference to a value of another worker.
func TestParityRemoteRoots(t *testing.T) {
	inOneProcessWith(t, "rpc/RpcTest.test_user_rref_backward", servingText, func(t require.TestingT, w *worker) {
		to, x := w.at(1), random(10)
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			f := rref.Remote(ctx, w.Agent, to, total, x)
			require.False(t, f.IsOwner())
			require.NoError(t, dist.BackwardRef(ctx, f, dist.PassOptions{RetainGraph: true}))
			require.NoError(t, dist.BackwardRef(ctx, f, dist.PassOptions{}))
			require.Len(t, c.Gradients(), 1)
			g, err := c.Gradient(x)
			require.NoError(t, err)
			requireSame(t, constant(2, 10).Value(), g)
			require.NoError(t, f.Release(ctx))
		})
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			f := textAt(ctx, w, to)
			err := dist.BackwardRef(ctx, f, dist.PassOptions{})
			require.ErrorIs(t, err, dist.ErrRoots)
			require.ErrorContains(t, err, "RRef should contain a tensor for .backward()")
			err = dist.BackwardRef(w.ctx, f, dist.PassOptions{})
			require.ErrorIs(t, err, dist.ErrNoContext)
			require.ErrorContains(t, err, "User RRefs require 'dist_autograd_ctx_id' to be specified")
			require.NoError(t, f.Release(ctx))
		})
	})
}

// TestParityAllInfo has the case of all metrics of a worker under PyTorch's names.
func TestParityAllInfo(t *testing.T) {
	inOneProcess(t, "rpc/RpcTest.test_debug_info", func(t require.TestingT, w *worker) {
		refs, err := rref.Of(w.Agent)
		require.NoError(t, err)
		parts := []map[string]string{torch.ReferenceInfo(refs), torch.DebugInfo(w.Metrics()), torch.AutogradInfo(w.graph)}
		var names []string
		for _, part := range parts {
			require.NotEmpty(t, part)
			for name := range part {
				require.NotContains(t, names, name, "two parts have it")
				names = append(names, name)
			}
		}
		var all []string
		for name := range torch.AllInfo(w.Agent) {
			all = append(all, name)
		}
		require.ElementsMatch(t, names, all)
	})
}
