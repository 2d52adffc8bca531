package agent_test

import (
	"context"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

var firstHalf = agent.NewFunc[*tensor.Tensor, *tensor.Tensor]("test.firstHalf")

// The memory of borrowed arguments is used again, and not before the answer, which may
// view it, has left.
func TestBorrowedMemoryIsUsedAgain(t *testing.T) {
	// The collector would find the memory as well.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	pool := tensor.NewPool(tensor.PoolOptions{})
	group := startGroup(t, 2, func(rank int, c *agent.Config) {
		if rank == 1 {
			c.Allocator = pool
		}
		c.Funcs = agent.Funcs{firstHalf.Serve(func(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
			return x.Slice(0, 0, x.Shape()[0]/2, 1)
		}, agent.Borrows())}
	})
	const n = 1 << 20
	for i := range 20 {
		half, err := firstHalf.Call(t.Context(), group[0], "worker1", filled(t, float32(i), n))
		require.NoError(t, err)
		same, err := tensor.Equal(half, filled(t, float32(i), n/2))
		require.NoError(t, err)
		require.True(t, same, "answer %d", i)
	}
	stats := pool.Stats()
	require.Less(t, stats.Mapped, 10, "the rest was used again: %+v", stats)
	require.Zero(t, stats.Collections)
}
