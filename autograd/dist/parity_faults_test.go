package dist_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

const (
	unreliableHandlers = 8
	failedSends        = 3
)

// messageTypes returns the types of the messages that PyTorch calls by names.
func messageTypes(t require.TestingT, names ...string) []string {
	types, err := torch.MessageTypes(names...)
	require.NoError(t, err)
	return types
}

// retriedTypes returns the types of messages that are sent until they have arrived.
func retriedTypes(t require.TestingT) []string {
	return messageTypes(t, "RREF_FORK_REQUEST", "RREF_CHILD_ACCEPT", "RREF_USER_DELETE", "CLEANUP_AUTOGRAD_CONTEXT_REQ")
}

// withFaults returns the configuration of workers whose messages have the faults of rules, and the fault
// injection of each.
func withFaults(t require.TestingT, rules []faulty.Rule) (configuration, []*faulty.Faulty) {
	all := make([]*faulty.Faulty, parityWorld)
	return func(rank int, c *agent.Config, _ *dist.Options) {
		var err error
		all[rank], err = faulty.New(faulty.Options{Rules: rules})
		require.NoError(t, err)
		c.FaultHook, c.MaxHandlers = all[rank].Inject, unreliableHandlers
	}, all
}

// TestParityFaults has the cases of contexts that end although messages are lost. The first three
// messages of four types fail, and calls are late, which are PyTorch's defaults.
func TestParityFaults(t *testing.T) {
	delays := map[string]time.Duration{}
	for _, typ := range messageTypes(t, "PYTHON_CALL", "SCRIPT_CALL") {
		delays[typ] = 1500 * time.Millisecond
	}
	rules := append(faulty.FailFirst(failedSends, retriedTypes(t)...), faulty.DelayTypes(delays)...)
	configure, faults := withFaults(t, rules)
	leaf := func(value float32) func() variable { return func() variable { return parameter(value, 3, 3) } }
	// requireCleanUp requires that contexts end on all workers, after the first messages have failed.
	requireCleanUp := func(t require.TestingT, w *worker) {
		cleansUp(false, callAdd(leaf(1), leaf(0)))(t, w)
		w.barrier(t) // all workers have found that
		last := slices.IndexFunc(rules, func(r faulty.Rule) bool { return slices.Contains(r.Types, "dist.cleanup") })
		require.Equal(t, faulty.Count{Matched: 2 * failedSends, Taken: failedSends}, faults[w.rank].Counts()[last], "one failure for each worker")
	}
	inSimulatedTime(t, "dist_autograd/FaultyAgentDistAutogradTest.test_context_cleanup_tensor_with_grad", configure, requireCleanUp)
	inSimulatedTime(t, "dist_autograd/FaultyAgentDistAutogradTest.test_verify_backend_options", configure, func(t require.TestingT, w *worker) {
		require.Equal(t, "8", torch.DebugInfo(w.Metrics())["agent.thread_pool_size"])
		require.Equal(t, unreliableHandlers, w.Metrics().MaxHandlers)
		var failing []string
		for _, r := range faults[w.rank].Options().Rules {
			if r.First == 0 {
				continue
			}
			require.Equal(t, faulty.Rule{Types: r.Types, First: failedSends, Do: faulty.Fail(nil)}, r)
			failing = append(failing, r.Types...)
		}
		require.Len(t, failing, 4)
		require.Equal(t, retriedTypes(t), failing)
		requireCleanUp(t, w) // the options are in effect
	})
}

// TestParityLostCleanUp has the case of one clean-up message that fails three times and is then lost
// without an error. The worker that was called keeps its part of the Context until it arrives.
func TestParityLostCleanUp(t *testing.T) {
	types := messageTypes(t, "CLEANUP_AUTOGRAD_CONTEXT_REQ")
	rules := append(faulty.FailFirst(failedSends, types...), faulty.Rule{Types: types, Skip: failedSends, First: 1, Do: faulty.Drop()})
	parity.Case(t, "rpc/FaultyAgent.retry_cleanup_context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			configure, faults := withFaults(t, rules)
			g, all := startParity(t, configure)
			contexts := func() int64 { return g.graphs[1].Metrics()["num_autograd_contexts"] }
			g.each(all, func(t require.TestingT, w *worker) {
				if w.rank != 0 {
					return
				}
				w.inContext(t, func(ctx context.Context, c *dist.Context) {
					exec(t, ctx, w, rpcSync, w.at(1), addStep(parameter(1, 3, 3), parameter(0, 3, 3)))
					w.markDone(t, ctx, c, 1)
				})
				require.EqualValues(t, 1, contexts())
				require.Eventually(t, func() bool { return faults[0].Counts()[1].Taken == 1 }, testwait.Limit, time.Millisecond)
				require.EqualValues(t, 1, contexts(), "all messages were lost")
				require.Eventually(t, func() bool { return contexts() == 0 }, testwait.Limit, time.Millisecond)
				require.Equal(t, []faulty.Count{{Matched: 5, Taken: 3}, {Matched: 5, Taken: 1}}, faults[0].Counts())
				_, err := all[1].all()[0].Context(g.agents[1])
				require.ErrorIs(t, err, dist.ErrNoContext)
			})
			g.finish()
		})
	})
}
