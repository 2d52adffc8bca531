package dist_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// embeddingSize is the number of rows and columns of the table.
const embeddingSize = 16

// embeddingBag is a table whose rows are summed, and whose gradient is sparse.
type embeddingBag struct{ weight variable }

// forward returns the sums of the bags.
func (e *embeddingBag) forward(ctx context.Context, b bags) (variable, error) {
	return autograd.EmbeddingBag(ctx, e.weight, autograd.Bags{
		Indices: b.Indices, Offsets: b.Offsets, PerSampleWeights: b.PerSampleWeights, Sparse: true,
	})
}

// bags are the arguments of forward; the first two require no gradient.
type bags struct{ Indices, Offsets, PerSampleWeights variable }

// remoteBags are bags for an embeddingBag of the callee.
type remoteBags struct {
	Embedding *rref.Ref[*embeddingBag]
	Bags      bags
}

// gradArgs names the table whose gradient is wanted.
type gradArgs struct {
	Embedding *rref.Ref[*embeddingBag]
	ID        dist.ID
}

var (
	newEmbedding  = agent.NewFunc[agent.None, *embeddingBag]("EmbeddingBag")
	callEmbedding = agent.NewFunc[remoteBags, variable]("call_remote_embedding")
	getGrad       = agent.NewFunc[gradArgs, variable]("get_grad")
)

// embeddingFunctions returns the functions on an embeddingBag of the callee.
func embeddingFunctions() agent.Funcs {
	return agent.Funcs{
		newEmbedding.Serve(func(context.Context, agent.None) (*embeddingBag, error) {
			return &embeddingBag{random(embeddingSize, embeddingSize)}, nil
		}),
		callEmbedding.Serve(func(ctx context.Context, v remoteBags) (variable, error) {
			e, err := v.Embedding.Local()
			if err != nil {
				return nil, err
			}
			if err := v.Embedding.Release(ctx); err != nil {
				return nil, err
			}
			return e.forward(ctx, v.Bags)
		}),
		getGrad.Serve(func(ctx context.Context, v gradArgs) (variable, error) {
			e, err := v.Embedding.Local()
			if err != nil {
				return nil, err
			}
			c, err := v.ID.Context(agent.FromContext(ctx))
			if err != nil {
				return nil, err
			}
			g, err := c.Gradient(e.weight)
			if err != nil {
				return nil, err
			}
			return autograd.New(g), v.Embedding.Release(ctx)
		}),
	}
}

// indices returns a Variable of int64 elements. It panics on an error.
func indices(values ...int64) variable {
	x, err := tensor.FromSlice(values, len(values))
	if err != nil {
		panic(err)
	}
	return autograd.Constant(x)
}

// TestParityEmbeddingBag computes the sparse gradient of a table of another worker, of which the rows
// were chosen by tensors that have no gradients, and requires that of a local one.
func TestParityEmbeddingBag(t *testing.T) {
	inOneProcess(t, "dist_autograd/TensorPipeAgentDistAutogradTest.test_embedding_bag_with_no_grad_tensors", func(t require.TestingT, w *worker) {
		to := w.next()
		remoteEmbedding := rref.Remote(w.ctx, w.Agent, to, newEmbedding, agent.None{})
		localEmbedding := &embeddingBag{random(embeddingSize, embeddingSize)}
		b := bags{indices(1, 2, 4, 5, 4, 3, 2, 9), indices(0, 4), random(8)}

		res, err := localEmbedding.forward(w.ctx, b)
		require.NoError(t, err)
		require.NoError(t, autograd.Backward(w.ctx, []variable{sum(t, w.ctx, res)}, autograd.RetainGraph()))
		require.NoError(t, autograd.Backward(w.ctx, []variable{sum(t, w.ctx, res)}))
		localGrad := localEmbedding.weight.Grad()
		require.NotNil(t, localGrad.Sparse())

		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			res, err := callEmbedding.Call(ctx, w.Agent, to, remoteBags{remoteEmbedding, b})
			require.NoError(t, err)
			require.Equal(t, []int{2, embeddingSize}, res.Shape())
			pass(t, ctx, c, true, sum(t, ctx, res))
			pass(t, ctx, c, false, sum(t, ctx, res))
			remoteGrad, err := getGrad.Call(ctx, w.Agent, to, gradArgs{remoteEmbedding, c.ID()})
			require.NoError(t, err)
			requireSame(t, localGrad, remoteGrad.Value())
		})
		require.NoError(t, remoteEmbedding.Release(w.ctx))
	})
}
