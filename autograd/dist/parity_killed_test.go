package dist_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// requireDead requires that calls to the worker to soon fail because it cannot be reached.
func (w *worker) requireDead(t require.TestingT, to agent.To) {
	require.Eventually(t, func() bool {
		_, err := setDone.Call(w.ctx, w.Agent, to, mark{})
		return errors.Is(err, agent.ErrUnreachable)
	}, testwait.Limit, time.Millisecond)
}

// requireFailed requires that err is that of a pass which cannot reach a worker, and matches text.
func requireFailed(t require.TestingT, err error, text string) {
	var node *dist.NodeError
	require.ErrorAs(t, err, &node)
	require.ErrorIs(t, err, agent.ErrUnreachable)
	require.Regexp(t, text, err)
}

// awaitKill waits for the test to kill this process.
func awaitKill(t require.TestingT, m *procgroup.Member) {
	m.Send("ready")
	require.NoError(t, m.WaitFor("never sent"))
}

// TestParityKilledWorkers has the case of workers that have computed a result, and are then killed: all
// with odd ranks.
func TestParityKilledWorkers(t *testing.T) {
	kill := func(group *procgroup.Group) {
		for rank := range parityWorld {
			group.WaitFor(rank, "ready")
		}
		group.Kill(1)
		group.Kill(3)
		group.Send(0, "killed")
		group.Send(2, "killed")
		group.Wait()
	}
	inProcesses(t, "dist_autograd/DistAutogradTest.test_backward_node_failure", kill, func(t require.TestingT, w *worker, m *procgroup.Member) bool {
		require.NoError(t, w.SetDefaultTimeout(5*time.Second))
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			to := w.next()
			res := exec(t, ctx, w, rpcSync, to, addStep(random(3, 3), random(3, 3)))
			w.barrier(t)
			if w.rank%2 != 0 {
				awaitKill(t, m)
				return
			}
			m.Send("ready")
			require.NoError(t, m.WaitFor("killed"))
			w.requireDead(t, "worker1")
			w.requireDead(t, "worker3")
			requireFailed(t, c.Backward(ctx, sum(t, ctx, res)), "Error on Node [0-9]+: .*"+string(to)+".*unreachable")
		})
		return false // it does not wait for the workers that are dead
	})
}

// TestParityKilledNestedWorker has the case of a worker that has passed a call on, and is then killed. The
// error of the pass comes from the worker before it.
func TestParityKilledNestedWorker(t *testing.T) {
	kill := func(group *procgroup.Group) {
		for rank := range parityWorld {
			group.WaitFor(rank, "ready")
		}
		group.Kill(2)
		group.Send(0, "killed")
		group.WaitFor(0, "failed")
		for _, rank := range []int{0, 1, 3} {
			group.Send(rank, "done")
		}
		group.Wait()
	}
	inProcesses(t, "dist_autograd/DistAutogradTest.test_backward_node_failure_python_udf", kill, func(t require.TestingT, w *worker, m *procgroup.Member) bool {
		require.NoError(t, w.SetDefaultTimeout(5*time.Second))
		w.inContext(t, func(ctx context.Context, c *dist.Context) {
			dst := (w.rank + 1) % parityWorld
			res, err := nestedCall.Call(ctx, w.Agent, agent.Rank(dst), nestedArgs{random(3, 3), random(3, 3), dst, 1})
			require.NoError(t, err)
			w.barrier(t)
			if w.rank == 2 {
				awaitKill(t, m)
				return
			}
			m.Send("ready")
			if w.rank == 0 {
				require.NoError(t, m.WaitFor("killed"))
				w.requireDead(t, "worker2")
				requireFailed(t, c.Backward(ctx, sum(t, ctx, res)), "Error on Node 1: .*worker2.*unreachable")
				m.Send("failed")
			}
			require.NoError(t, m.WaitFor("done"))
		})
		return false // it does not wait for the worker that is dead
	})
}
