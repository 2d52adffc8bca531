package dist_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops"
	"github.com/tensorpipe-go/tensorpipe/tensor/ops/gonumblas"
)

// countingAlloc counts the tensors that it makes.
type countingAlloc struct{ n atomic.Int64 }

// Alloc implements tensor.Allocator.
func (a *countingAlloc) Alloc(size int) (*tensor.Storage, error) {
	a.n.Add(1)
	return tensor.Heap{}.Alloc(size)
}

func (a *countingAlloc) engine() *ops.Engine {
	return &ops.Engine{Gemm: gonumblas.Gemm{}, Alloc: a}
}

// TestEngines checks that a pass computes with the engine of its caller, and on other workers with that of
// their Options, with which functions compute, too.
func TestEngines(t *testing.T) {
	var mine, others countingAlloc
	run(t, 2, func(rank int, _ *agent.Config, o *dist.Options) {
		if rank == 1 {
			o.Engine = others.engine()
		}
	}, func(t *testing.T, g *group) {
		g.inContext(func(ctx context.Context, c *dist.Context) {
			x, y := parameter(2, 2), parameter(5, 2)
			z, err := mul.Call(ctx, g.agents[0], "worker1", pair{x, y})
			require.NoError(t, err)
			require.EqualValues(t, 1, others.n.Load(), "the product")
			require.NoError(t, c.Backward(autograd.WithEngine(ctx, mine.engine()), sum(t, ctx, z)))
			requireGradient(t, 5, c, x)
			require.Positive(t, mine.n.Load())
			require.EqualValues(t, 3, others.n.Load(), "the gradients of both factors")
		})
	})
}

// TestDTypes checks gradients of both dtypes, and sparse ones, through three workers, with a graph that is
// kept.
func TestDTypes(t *testing.T) {
	run(t, 3, nil, func(t *testing.T, g *group) {
		for _, dtype := range []tensor.DType{tensor.F32, tensor.F64} {
			g.inContext(func(ctx context.Context, c *dist.Context) {
				ones, err := tensor.Zeros(dtype, 3)
				require.NoError(t, err)
				x, err := autograd.Parameter(ones)
				require.NoError(t, err)
				z, err := relay.Call(ctx, g.agents[0], "worker1", viaArgs{[]string{"worker2", "worker0"}, pair{x, x}})
				require.NoError(t, err)
				require.Equal(t, dtype, z.DType())
				root := sum(t, ctx, z)
				for range 3 {
					require.NoError(t, c.BackwardWith(ctx, dist.PassOptions{RetainGraph: true}, root))
				}
				grad, err := c.Gradient(x)
				require.NoError(t, err)
				require.Equal(t, dtype, grad.DType())
			})
		}
		g.inContext(func(ctx context.Context, c *dist.Context) {
			s := autograd.New(autograd.Sparse(sparseTensor(t, 4)))
			require.NoError(t, s.RequireGrad())
			z, err := total.Call(ctx, g.agents[0], "worker1", s)
			require.NoError(t, err)
			require.NoError(t, c.Backward(ctx, z))
			grad, err := c.Gradient(s)
			require.NoError(t, err)
			dense, err := grad.ToDense()
			require.NoError(t, err)
			require.Equal(t, []int{4}, dense.Shape())
		})
	})
}

// TestIDs checks the numbers of Contexts and messages: the rank, and a count from a random start.
func TestIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run(t, 3, nil, func(t *testing.T, g *group) {
			starts, known := map[uint64]bool{}, [][]string{{"worker1"}, {"worker0", "worker2"}, {"worker0", "worker1"}}
			for rank, a := range g.agents {
				last := uint64(0)
				for range 3 {
					ctx, c, err := dist.WithContext(t.Context(), a)
					require.NoError(t, err)
					_, err = total.Call(ctx, a, "worker0", parameter(1, 2))
					require.NoError(t, err)
					_, err = relay.Call(ctx, a, "worker1", viaArgs{[]string{"worker2"}, pair{parameter(1, 1), parameter(1, 1)}})
					require.NoError(t, err)
					for _, n := range append(dist.SendNumbers(c), uint64(c.ID())) {
						require.EqualValues(t, rank, n>>48)
						require.Less(t, n&(1<<48-1), uint64(1<<47+100))
					}
					require.True(t, last == 0 || uint64(c.ID()) == last+1)
					last = uint64(c.ID())
					require.Equal(t, known[rank], c.KnownWorkers())
					require.NoError(t, c.Close())
				}
				starts[last&(1<<48-1)] = true
			}
			require.Len(t, starts, 3, "the starts are random")
		})
	})
}
