package agent_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// Remove takes a killed worker off the list, even if it is called before the death has been
// noticed. After that the barriers of the whole group succeed.
func TestRemoveKilledMember(t *testing.T) {
	group := procgroup.Start(t, 3, func(m *procgroup.Member) error {
		a, err := joinMember(m, func(c *agent.Config) { c.WorldSize = 0; serveStuck(m)(c) })
		if err != nil {
			return err
		}
		m.Send("joined")
		if err := m.WaitFor("meet"); err != nil {
			return err
		}
		err = a.Barrier(m.Context())
		m.Send("met")
		switch m.Rank {
		case 2:
			return errors.Join(err, m.WaitFor("never"))
		case 1:
			return errors.Join(err, m.WaitFor("removed"), a.Barrier(m.Context()), a.Shutdown(m.Context()))
		}
		return errors.Join(err, m.WaitFor("remove"), removeKilled(m, a), a.Shutdown(m.Context()))
	})
	waitForLines(group, 3, "joined")
	group.SendAll("meet")
	waitForLines(group, 3, "met")
	group.Send(0, "remove")
	group.WaitFor(0, "waiting")
	group.Kill(2)
	group.WaitFor(0, "removed")
	group.Send(1, "removed")
	group.Wait()
}

func waitForLines(group *procgroup.Group, n int, word string) {
	for rank := range n {
		group.WaitFor(rank, word)
	}
}

// removeKilled removes worker2, which the test kills during a call of a. It returns nil if that
// call fails because of the death, a second Remove fails with ErrNoWorker, two workers remain, and
// their barrier succeeds.
func removeKilled(m *procgroup.Member, a *agent.Agent) error {
	f := stuck.Go(m.Context(), a, "worker2", "worker0", agent.WithTimeout(0))
	m.Send("waiting")
	if err := a.Remove(m.Context(), "worker2"); err != nil {
		return err
	}
	_, callErr := f.Wait(m.Context())
	again := a.Remove(m.Context(), "worker2")
	if !errors.Is(again, agent.ErrNoWorker) {
		return fmt.Errorf("want ErrNoWorker, got %w", again)
	}
	infos, err := a.Workers(m.Context())
	m.Send("removed")
	return errors.Join(wantDeath(callErr, "call", "worker2"), err, want(2, len(infos)), a.Barrier(m.Context()))
}

// Remove of a living worker blocks until its context ends, and the worker stays in the group.
// Remove fails for the worker itself, for an unknown worker and in a static group.
func TestRemoveLivingWorker(t *testing.T) {
	dynamic := func(_ int, c *agent.Config) { c.WorldSize = 0 }
	simulate(t, 2, dynamic, func(t *testing.T, group []*agent.Agent) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := group[0].Remove(ctx, "worker1")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualError(t, err, "agent: remove worker1: the worker has not died: context deadline exceeded")
		infos, err := group[1].Workers(t.Context())
		require.NoError(t, err)
		require.Len(t, infos, 2)

		require.ErrorIs(t, group[0].Remove(t.Context(), "worker0"), agent.ErrConfig, "itself")
		require.ErrorIs(t, group[0].Remove(t.Context(), "nobody"), agent.ErrNoWorker)
	})
	simulate(t, 2, nil, func(t *testing.T, group []*agent.Agent) {
		require.ErrorIs(t, group[0].Remove(t.Context(), "worker1"), agent.ErrStatic)
	})
}

// If a living worker is removed because another worker could not reach it, all its later operations
// fail with ErrRemoved, and the others do not list it any more.
func TestRemovedWorkerGetsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, elsewhere := mem.NewNetwork(), mem.NewNetwork()
		s := store.NewMemory(store.Limits{})
		defer s.Close()
		join := func(name string, network *mem.Network) *agent.Agent {
			c := agent.Config{Name: name, Rank: -1, Store: s}
			inMemory(&c, network)
			a, err := agent.Join(t.Context(), c)
			require.NoError(t, err)
			return a
		}
		a, cut, b := join("a", here), join("cut", elsewhere), join("b", here)
		defer b.Close()
		defer cut.Close()
		defer a.Close()
		require.NoError(t, a.Remove(t.Context(), "cut"))
		synctest.Wait()
		require.Equal(t, []agent.WorkerInfo{a.Self(), b.Self()}, b.WorkerInfos(), "the other worker knows of the removal")

		require.ErrorIs(t, cut.Barrier(t.Context()), agent.ErrRemoved)
		require.ErrorIs(t, cut.Remove(t.Context(), "b"), agent.ErrRemoved)
		_, err := cut.Workers(t.Context())
		require.ErrorIs(t, err, agent.ErrRemoved)
		_, err = double.Call(t.Context(), cut, "a", 1)
		require.ErrorIs(t, err, agent.ErrRemoved)
		require.ErrorIs(t, err, agent.ErrUnreachable)
	})
}

// Remove fails with ErrRemoved at a worker that was replaced, and removes no worker, although the
// others reject the pipes of that worker.
func TestReplacedWorkerCannotRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.NewNetwork()
		s := store.NewMemory(store.Limits{})
		defer s.Close()
		join := func(name string) *agent.Agent {
			c := agent.Config{Name: name, Rank: -1, Store: s, Replace: true}
			inMemory(&c, network)
			a, err := agent.Join(t.Context(), c)
			require.NoError(t, err)
			return a
		}
		a, old := join("a"), join("b")
		now := join("b")
		defer now.Close()
		defer old.Close()
		defer a.Close()
		require.ErrorIs(t, old.Remove(t.Context(), "a"), agent.ErrRemoved)
		infos, err := now.Workers(t.Context())
		require.NoError(t, err)
		require.Len(t, infos, 2)
	})
}
