package agent_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
)

// Faults between real processes.

var stuck = agent.NewFunc[string, string]("test.stuck")

// serveStuck returns an edit function for joinMember that makes the worker serve double and stuck.
// The handler of stuck sends "stuck for " and its argument to the test and blocks until its context
// ends.
func serveStuck(m *procgroup.Member) func(*agent.Config) {
	return func(c *agent.Config) {
		c.Funcs = agent.Funcs{
			double.Serve(func(_ context.Context, n int) (int, error) { return 2 * n, nil }),
			stuck.Serve(func(ctx context.Context, by string) (string, error) {
				m.Send("stuck for " + by)
				<-ctx.Done()
				return "", context.Cause(ctx)
			}),
		}
	}
}

// wantDeath returns nil if err is an *Error of the operation op that matches ErrUnreachable and
// names worker. Otherwise it returns an error that wraps err.
func wantDeath(err error, op, worker string) error {
	var e *agent.Error
	if !errors.Is(err, agent.ErrUnreachable) || !errors.As(err, &e) || e.Worker != worker || e.Op != op {
		return fmt.Errorf("want a %s that tells of the death of %s, got %w", op, worker, err)
	}
	return nil
}

// Pending and new calls to a killed worker fail with ErrUnreachable, without a timeout; calls to
// other workers succeed.
func TestKilledDuringCalls(t *testing.T) {
	group := procgroup.Start(t, 3, func(m *procgroup.Member) error {
		a, err := joinMember(m, serveStuck(m))
		if err != nil {
			return err
		}
		if m.Rank != 0 {
			return errors.Join(m.WaitFor("leave"), a.Close())
		}
		// The calls must fail because of the death, before this timeout.
		ctx, cancel := context.WithTimeout(m.Context(), maxDeathDelay)
		defer cancel()
		later := stuck.Go(ctx, a, "worker1", "later", agent.WithTimeout(0))
		_, err = stuck.Call(ctx, a, "worker1", "now", agent.WithTimeout(0))
		_, laterErr := later.Wait(ctx)
		_, newErr := double.Call(ctx, a, "worker1", 1, agent.WithTimeout(0))
		n, otherErr := double.Call(m.Context(), a, "worker2", 1)
		return errors.Join(wantDeath(err, "call", "worker1"), wantDeath(laterErr, "call", "worker1"), wantDeath(newErr, "call", "worker1"),
			otherErr, want(2, n), a.Close())
	})
	for range 2 {
		group.ReadLine(1)
	}
	group.Kill(1)
	require.NoError(t, group.WaitExit(0))
	group.Send(2, "leave")
	group.Wait()
}

// killDuring kills the process of rank victim, one of three, while the others wait for it in meet,
// a collective operation named op. It requires that meet fails at both survivors with an error that
// names the victim. Unless the victim leads, both have contributed before the kill, see
// notifyArrivals.
func killDuring(t *testing.T, victim int, op string, meet func(ctx context.Context, a *agent.Agent) error) {
	group := procgroup.Start(t, 3, func(m *procgroup.Member) error {
		a, err := joinMember(m, func(c *agent.Config) { c.Interceptors = []agent.Interceptor{notifyArrivals(m)} })
		if err != nil {
			return err
		}
		err = a.Barrier(m.Context()) // opens the pipes
		m.Send("ready")
		if m.Rank == victim {
			return errors.Join(err, m.WaitFor("never"))
		}
		if err := errors.Join(err, m.WaitFor("meet")); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(m.Context(), maxDeathDelay)
		defer cancel()
		met := wantDeath(meet(ctx, a), op, fmt.Sprint("worker", victim))
		return errors.Join(met, a.Close())
	})
	for rank := range 3 { // the leader may return from the barrier before the others
		group.WaitFor(rank, "ready")
	}
	group.SendAll("meet")
	if victim != 0 {
		// The leader survives. If the other survivor contributed after the death, it could find
		// the leader closed already.
		group.WaitFor(0, fmt.Sprintf("worker%d has come again", 3-victim))
	}
	group.Kill(victim)
	group.Wait()
}

// maxDeathDelay bounds the time in which the death of a process is noticed on a very busy machine.
const maxDeathDelay = 20 * time.Second

// notifyArrivals returns an interceptor for the leader of rounds. From the second contribution of a
// worker on, it sends "<name> has come again" to the test.
func notifyArrivals(m *procgroup.Member) agent.Interceptor {
	var mu sync.Mutex
	come := map[string]bool{}
	return agent.Interceptor{Decoded: func(_ context.Context, q *agent.Message) error {
		if q.Kind != agent.KindRequest || q.Type != "agent.group" {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if come[q.Peer.Name] {
			m.Send(q.Peer.Name + " has come again")
		}
		come[q.Peer.Name] = true
		return nil
	}}
}

func TestKilledDuringBarrier(t *testing.T) {
	for _, victim := range []int{0, 2} {
		t.Run(fmt.Sprint(victim), func(t *testing.T) {
			killDuring(t, victim, "barrier", func(ctx context.Context, a *agent.Agent) error { return a.Barrier(ctx) })
		})
	}
}

func TestKilledDuringShutdown(t *testing.T) {
	for _, victim := range []int{0, 2} {
		t.Run(fmt.Sprint(victim), func(t *testing.T) {
			killDuring(t, victim, "shutdown", func(ctx context.Context, a *agent.Agent) error { return a.Shutdown(ctx) })
		})
	}
}

// If a worker is killed before it joins, the error of Join at the workers that wait for it names
// its rank.
func TestKilledBeforeJoin(t *testing.T) {
	group := procgroup.Start(t, 3, func(m *procgroup.Member) error {
		if m.Rank == 1 {
			m.Send("ready")
			return m.WaitFor("never")
		}
		ctx, cancel := context.WithCancel(m.Context())
		defer cancel()
		listen := sync.OnceFunc(func() {
			m.Send("waiting")
			go func() {
				_ = m.WaitFor("enough") // or the end of the test
				cancel()
			}()
		})
		_, done, err := joinObserved(ctx, m, func(_ context.Context, op, _ string) error {
			if op == "wait" {
				listen()
			}
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			return fmt.Errorf("want the end of the context, got %w", err)
		}
		m.Send(err.Error())
		return done()
	})
	group.WaitFor(1, "ready")
	group.Kill(1)
	for _, rank := range []int{0, 2} {
		group.WaitFor(rank, "waiting")
	}
	group.SendAll("enough")
	require.Contains(t, group.ReadLine(0)+group.ReadLine(2), "rank 1 of 3 has not joined")
	group.Wait()
}

// A worker whose process is stopped does not count as dead: a barrier waits for it and succeeds
// once the process continues.
func TestStoppedMember(t *testing.T) {
	group := procgroup.Start(t, 2, func(m *procgroup.Member) error {
		a, err := joinMember(m, nil)
		if err != nil {
			return err
		}
		first := a.Barrier(m.Context())
		if m.Rank == 1 {
			m.Send("ready")
			return errors.Join(first, m.WaitFor("go on"), a.Barrier(m.Context()), a.Shutdown(m.Context()))
		}
		if err := m.WaitFor("stopped"); err != nil {
			return err
		}
		m.Send("waiting")
		return errors.Join(first, a.Barrier(m.Context()), a.Shutdown(m.Context()))
	})
	group.WaitFor(1, "ready")
	group.Stop(1)
	group.Send(0, "stopped")
	group.WaitFor(0, "waiting")
	group.Continue(1)
	group.Send(1, "go on")
	group.Wait()
}

// In a dynamic group a worker that was killed and restarted replaces its earlier incarnation, and
// can be called. In a static group its Join fails with ErrJoined.
func TestRestartedMember(t *testing.T) {
	for _, static := range []bool{false, true} {
		t.Run(fmt.Sprint("static=", static), func(t *testing.T) { restarted(t, static) })
	}
}

func restarted(t *testing.T, static bool) {
	group := procgroup.Start(t, 2, func(m *procgroup.Member) error {
		a, err := joinMember(m, func(c *agent.Config) {
			serveStuck(m)(c)
			c.Replace = m.Restarts > 0
			if !static {
				c.WorldSize = 0
			}
		})
		if static && m.Restarts > 0 {
			if !errors.Is(err, agent.ErrJoined) {
				return fmt.Errorf("want ErrJoined, got %w", err)
			}
			m.Send("joined")
			return nil
		}
		if err != nil {
			return err
		}
		m.Send("joined")
		if m.Rank == 1 {
			return errors.Join(m.WaitFor("leave"), a.Close())
		}
		return errors.Join(callRestarted(m, a, static), a.Close())
	})
	group.WaitFor(0, "joined")
	group.WaitFor(1, "joined")
	group.Send(0, "call")
	group.WaitFor(1, "stuck for worker0")
	group.Kill(1)
	group.WaitFor(0, "failed")
	group.Restart(1)
	group.WaitFor(1, "joined")
	group.Send(0, "again")
	require.NoError(t, group.WaitExit(0))
	if !static {
		group.Send(1, "leave")
	}
	group.Wait()
}

func callRestarted(m *procgroup.Member, a *agent.Agent, static bool) error {
	if err := m.WaitFor("call"); err != nil {
		return err
	}
	_, err := stuck.Call(m.Context(), a, "worker1", m.Name(), agent.WithTimeout(0))
	if err := wantDeath(err, "call", "worker1"); err != nil {
		return err
	}
	m.Send("failed")
	if err := m.WaitFor("again"); err != nil {
		return err
	}
	n, err := double.Call(m.Context(), a, "worker1", 21)
	if static {
		return wantDeath(err, "call", "worker1")
	}
	return errors.Join(err, want(42, n))
}

// If the process of the store is stopped or killed, workers that have joined can still call each
// other and meet, and Close does not wait long for the store.
func TestStoreGone(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"stopped", "killed"} {
		t.Run(how, func(t *testing.T) { storeGone(t, how) })
	}
}

func storeGone(t *testing.T, how string) {
	url := "tcp://" + freeport.Addr(t) // of the first process
	group := procgroup.Start(t, 3, func(m *procgroup.Member) error {
		url, err := m.ReadLine()
		if err != nil {
			return err
		}
		a, err := joinMember(m, func(c *agent.Config) { c.Rendezvous = url; serveStuck(m)(c) })
		if err != nil {
			return err
		}
		m.Send("joined")
		if err := m.WaitFor("gone"); err != nil {
			return err
		}
		n, err := double.Call(m.Context(), a, agent.Rank(3-m.Rank), 21)
		met := a.Barrier(m.Context(), "worker1", "worker2")
		return errors.Join(err, want(42, n), met, a.Close())
	})
	group.SendAll(url)
	for rank := range 3 {
		group.WaitFor(rank, "joined")
	}
	if how == "killed" {
		group.Kill(0)
	} else {
		group.Stop(0)
	}
	for _, rank := range []int{1, 2} {
		group.Send(rank, "gone")
	}
	for _, rank := range []int{1, 2} {
		require.NoError(t, group.WaitExit(rank))
	}
	group.Kill(0)
	group.Wait()
}

func TestWrongWorldSize(t *testing.T) {
	s := memoryStore(t)
	_, errs := joinAll(t, member(s, 0, 2), member(s, 1, 3), member(s, 2, 3))
	for _, err := range errs {
		require.ErrorIs(t, err, agent.ErrWorldSize)
	}
	_, errs = joinAll(t, member(memoryStore(t), 2, 2))
	require.ErrorIs(t, errs[0], agent.ErrWorldSize)
}

func TestDuplicateRank(t *testing.T) {
	s := memoryStore(t)
	other := member(s, 0, 2)
	other.Name = "other"
	_, errs := joinAll(t, member(s, 0, 2), other)
	for _, err := range errs {
		require.ErrorIs(t, err, agent.ErrDuplicateRank)
	}
}
