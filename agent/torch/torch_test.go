package torch_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
)

func TestEmptyTableOfBackends(t *testing.T) {
	var b torch.Backends
	_, err := b.Join(t.Context(), "", agent.Config{})
	require.ErrorIs(t, err, agent.ErrConfig)
	require.ErrorContains(t, err, `"tensorpipe" is not: there are []`)

	type options struct{ name string }
	require.NoError(t, b.Register("stub", func(_ context.Context, given any) (torch.Worker, error) {
		o, err := torch.OptionsOf[options]("stub", given)
		if err == nil {
			require.Equal(t, "worker0", o.name)
		}
		return nil, err
	}))
	_, err = b.Join(t.Context(), "stub", options{"worker0"})
	require.NoError(t, err)
	_, err = b.Join(t.Context(), "stub", agent.Config{})
	require.ErrorIs(t, err, agent.ErrConfig)
	require.ErrorContains(t, err, "the options of backend stub must be torch_test.options, got agent.Config")
}

func TestParity(t *testing.T) {
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_infer_backend_from_options", func(t *testing.T) {
		const world = 4
		s := store.NewMemory(store.Limits{})
		defer s.Close()
		workers, errs := make([]torch.Worker, world), make([]error, world)
		var all sync.WaitGroup
		for rank := range world {
			options := agent.Config{Name: fmt.Sprint("worker", rank), Rank: rank, WorldSize: world, Store: s, Logger: slog.New(slog.DiscardHandler)}
			all.Go(func() { workers[rank], errs[rank] = torch.NewBackends().Join(t.Context(), "", options) })
		}
		all.Wait()
		require.Equal(t, make([]error, world), errs)
		for rank, w := range workers {
			require.IsType(t, &agent.Agent{}, w)
			require.Equal(t, rank, w.Self().Rank)
			all.Go(func() { errs[rank] = w.Shutdown(t.Context()) })
		}
		all.Wait()
		require.Equal(t, make([]error, world), errs)
	})
}

func TestDebugInfo(t *testing.T) {
	require.Equal(t, map[string]string{
		"agent.thread_pool_size":          "9",
		"agent.num_idle_threads":          "7",
		"agent.client_active_calls":       "4",
		"agent.server_active_calls":       "6",
		"agent.server_active_async_calls": "1",
		"agent.client_blocked_calls":      "5",
		"agent.server_queued_calls":       "3",
		"agent.pipes":                     "8",
		"agent.late_answers":              "18446744073709551615",
		"agent.repeated_requests":         "10",
		"agent.turned_away":               "11",
	}, torch.DebugInfo(agent.Metrics{
		MaxHandlers: 9, RunningHandlers: 2, QueuedRequests: 3,
		PendingCalls: 4, BlockedCalls: 5, ServedCalls: 6, DeferredReplies: 1, Pipes: 8,
		LateReplies: 1<<64 - 1, DuplicateRequests: 10, RejectedPipes: 11,
	}))
}
