package agent_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// each calls f for each worker of group concurrently, waits for all calls, and returns their errors
// by the index of the worker. It fails the test if they take too long.
func each(t *testing.T, group []*agent.Agent, f func(a *agent.Agent) error) []error {
	t.Helper()
	return testwait.Finish(t, testwait.Start(func() []error {
		errs := make([]error, len(group))
		var wg sync.WaitGroup
		for i, a := range group {
			wg.Go(func() { errs[i] = f(a) })
		}
		wg.Wait()
		return errs
	}))
}

func requireAll(t *testing.T, group []*agent.Agent, f func(a *agent.Agent) error) {
	t.Helper()
	require.NoError(t, errors.Join(each(t, group, f)...))
}

type weights struct {
	Name   string
	Values []*tensor.Tensor
}

func TestAllGather(t *testing.T) {
	group := startGroup(t, 4, nil)
	requireAll(t, group, func(a *agent.Agent) error {
		whole := filled(t, float32(a.Self().Rank), 100, 100)
		part, err := whole.Narrow(1, 3, 2)
		require.NoError(t, err)
		all, err := agent.AllGather(t.Context(), a, weights{a.Self().Name, []*tensor.Tensor{whole, part, filled(t, 1, 0)}})
		if err != nil {
			return err
		}
		require.Len(t, all, 4)
		for rank := range 4 {
			w := all[fmt.Sprintf("worker%d", rank)]
			require.Equal(t, fmt.Sprintf("worker%d", rank), w.Name)
			for i, shape := range [][]int{{100, 100}, {100, 2}, {0}} {
				same, err := tensor.Equal(filled(t, float32(rank), shape...), w.Values[i])
				require.NoError(t, err)
				require.True(t, same)
			}
		}
		return nil
	})
}

// AllGather fails with ErrResult at each worker if the workers contribute values of different
// types.
func TestAllGatherTypeMismatch(t *testing.T) {
	group := startGroup(t, 2, nil)
	errs := each(t, group, func(a *agent.Agent) error {
		var err error
		if a.Self().Rank == 0 {
			_, err = agent.AllGather(t.Context(), a, "text")
		} else {
			_, err = agent.AllGather(t.Context(), a, 5)
		}
		return err
	})
	for _, err := range errs {
		require.ErrorIs(t, err, agent.ErrResult)
	}
}

func TestGatherWithoutSelf(t *testing.T) {
	group := startGroup(t, 2, nil)
	require.ErrorIs(t, group[0].Barrier(t.Context(), "worker1"), agent.ErrConfig)
	require.ErrorIs(t, group[0].Barrier(t.Context(), "worker0", "nobody"), agent.ErrNoWorker)
	require.NoError(t, group[0].Barrier(t.Context(), "worker0", agent.Rank(0)))
}

// If a worker has left, whether or not it leads the round, Barrier fails at the others with
// ErrUnreachable and names that worker. The others can meet in a barrier that names only them.
func TestBarrierWithoutMember(t *testing.T) {
	for gone := range 3 {
		t.Run(fmt.Sprint(gone), func(t *testing.T) {
			group := startGroup(t, 3, nil)
			require.NoError(t, group[gone].Close())
			rest := append(append([]*agent.Agent(nil), group[:gone]...), group[gone+1:]...)
			for _, err := range each(t, rest, func(a *agent.Agent) error { return a.Barrier(t.Context()) }) {
				var e *agent.Error
				require.ErrorIs(t, err, agent.ErrUnreachable)
				require.ErrorAs(t, err, &e)
				require.Equal(t, fmt.Sprintf("worker%d", gone), e.Worker)
				require.Equal(t, "barrier", e.Op)
			}
			// The remaining workers can still meet without it.
			requireAll(t, rest, func(a *agent.Agent) error { return a.Barrier(t.Context(), rest[0].Self().To(), rest[1].Self().To()) })
		})
	}
}

// If a worker cancels its Barrier, the round fails at all workers, also at those that call Barrier
// later. The next round succeeds.
func TestBarrierCanceled(t *testing.T) {
	here := make(chan struct{}, 8) // for all rounds
	arrived := agent.Interceptor{Decoded: func(_ context.Context, m *agent.Message) error {
		if m.Kind == agent.KindRequest && m.Type == "agent.group" && m.Peer.Name == "worker1" {
			here <- struct{}{}
		}
		return nil
	}}
	group := startGroup(t, 3, func(_ int, c *agent.Config) { c.Interceptors = []agent.Interceptor{arrived} })
	ctx, cancel := context.WithCancelCause(t.Context())
	waiting := []<-chan error{
		testwait.Start(func() error { return group[0].Barrier(t.Context()) }),
		testwait.Start(func() error { return group[1].Barrier(ctx) }),
	}
	testwait.Finish(t, here)
	tired := errors.New("tired")
	cancel(tired)
	require.ErrorIs(t, testwait.Finish(t, waiting[1]), tired)
	for _, ch := range []<-chan error{waiting[0], testwait.Start(func() error { return group[2].Barrier(t.Context()) })} {
		err := testwait.Finish(t, ch)
		require.ErrorIs(t, err, agent.ErrCallerGone)
		require.ErrorContains(t, err, "on worker1: ")
		require.ErrorContains(t, err, "tired")
	}
	requireAll(t, group, func(a *agent.Agent) error { return a.Barrier(t.Context()) })
}

func TestBarrierDeadline(t *testing.T) {
	group := startGroup(t, 3, func(_ int, c *agent.Config) { c.Timeout = 300 * time.Millisecond })
	errs := each(t, group[:2], func(a *agent.Agent) error { return a.Barrier(t.Context()) })
	for _, err := range errs {
		// It timed out itself, or because the other one did.
		require.ErrorContains(t, err, "no reply within the call's limit of 300ms")
		if !errors.Is(err, agent.ErrCallerGone) {
			require.ErrorIs(t, err, agent.ErrTimeout)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
	}
	// The late worker does not wait for them. It fails, unless the leader has not learned of the
	// failure yet.
	if err := testwait.Finish(t, testwait.Start(func() error { return group[2].Barrier(t.Context()) })); err != nil {
		require.ErrorContains(t, err, "no reply within the call's limit of 300ms")
	}
	for _, a := range group {
		require.NoError(t, a.SetDefaultTimeout(testwait.Limit))
	}
	requireAll(t, group, func(a *agent.Agent) error { return a.Barrier(t.Context()) })
}

// Join fails with ErrConfig if Config.Handlers has a type that begins with "agent.".
func TestReservedTypes(t *testing.T) {
	c := member(memoryStore(t), 0, 1)
	c.Handlers = map[string]agent.Handler{"agent.group": nil}
	_, errs := joinAll(t, c)
	require.ErrorIs(t, errs[0], agent.ErrConfig)
	c.Handlers = map[string]agent.Handler{"agent.group": noHandler{}}
	_, errs = joinAll(t, c)
	require.ErrorIs(t, errs[0], agent.ErrConfig)
	require.ErrorContains(t, errs[0], "are reserved")
}

type noHandler struct{}

func (noHandler) Open(*agent.Request) (agent.Task, error) { return nil, errors.New("not to be called") }

// Barrier and AllGather complete although handlers occupy all slots of the leader.
func TestBarrierWithoutFreeSlot(t *testing.T) {
	h := &hanging{}
	configure := func(rank int, c *agent.Config) { h.serve(rank, c); c.MaxHandlers = 1 }
	simulate(t, 3, configure, func(t *testing.T, group []*agent.Agent) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		hung := hang.Go(ctx, group[1], "worker0", agent.None{}, agent.WithTimeout(0))
		synctest.Wait()
		require.Equal(t, 1, group[0].Metrics().RunningHandlers)
		begun := time.Now()
		requireAll(t, group, func(a *agent.Agent) error { return a.Barrier(t.Context()) })
		requireAll(t, group, func(a *agent.Agent) error {
			all, err := agent.AllGather(t.Context(), a, a.Self().Rank)
			if err != nil {
				return err
			}
			return want(2, all["worker2"])
		})
		require.Zero(t, time.Since(begun))
		require.False(t, hung.IsDone())
	})
}
