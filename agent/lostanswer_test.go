package agent_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/simnet"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

var manyOnes = agent.NewFunc[int, *tensor.Tensor]("test.manyOnes")

// cutter cuts the links of a network when it is to make memory for a tensor, some times.
type cutter struct {
	tensor.Allocator
	network *simnet.Network
	times   atomic.Int32
}

func (c *cutter) Alloc(size int) (*tensor.Storage, error) {
	if c.times.Add(-1) >= 0 {
		for _, l := range c.network.Links() {
			l.Cut()
		}
	}
	return c.Allocator.Alloc(size)
}

// A pipe that breaks while an answer is read is a lost worker, and not a bad result: the
// call may be made again.
func TestPipeBreaksBehindAnAnswer(t *testing.T) {
	cut := &cutter{Allocator: tensor.NewPool(tensor.PoolOptions{}), network: simnet.New(uv.New())}
	group := startGroup(t, 2, func(rank int, c *agent.Config) {
		overLinks(c, cut.network)
		if rank == 0 {
			c.Allocator = cut
		}
		c.Funcs = agent.Funcs{manyOnes.Serve(func(_ context.Context, n int) (*tensor.Tensor, error) {
			x, err := tensor.Zeros(tensor.F32, n)
			if err != nil {
				return nil, err
			}
			return x, tensor.Fill[float32](x, 1)
		})}
	})
	const n = 1 << 20
	for range 2 {
		cut.times.Store(1)
		_, err := manyOnes.Call(t.Context(), group[0], "worker1", n)
		require.NoError(t, gone(err, "call", "worker1"))
		require.NotErrorIs(t, err, agent.ErrResult)

		cut.times.Store(1)
		_, err = manyOnes.Go(t.Context(), group[0], "worker1", n).Wait(t.Context())
		require.NoError(t, gone(err, "call", "worker1"))
		require.NotErrorIs(t, err, agent.ErrResult)

		cut.times.Store(2)
		// As often as it takes: a busy machine may be slow to open another pipe.
		again := agent.WithRetry(agent.Retry{Max: 1000, Delay: 5 * time.Millisecond, Backoff: 1})
		x, err := manyOnes.Call(t.Context(), group[0], "worker1", n, again)
		require.NoError(t, err)
		same, err := tensor.Equal(filled(t, 1, n), x)
		require.NoError(t, err)
		require.True(t, same)
		require.Negative(t, cut.times.Load())
	}
}
