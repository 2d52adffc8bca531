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
	"github.com/tensorpipe-go/tensorpipe/internal/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/team"
)

// These are faults between real processes.

var stuck = agent.NewFunc[string, string]("test.stuck")

// serveStuck says on whose behalf it waits, until nobody wants that any more.
func serveStuck(m *team.Member) func(*agent.Config) {
	return func(c *agent.Config) {
		c.Funcs = agent.Funcs{
			double.Serve(func(_ context.Context, n int) (int, error) { return 2 * n, nil }),
			stuck.Serve(func(ctx context.Context, by string) (string, error) {
				m.Say("stuck for " + by)
				<-ctx.Done()
				return "", context.Cause(ctx)
			}),
		}
	}
}

// gone is an error unless err says that a worker died, by name.
func gone(err error, op, worker string) error {
	var e *agent.Error
	if !errors.Is(err, agent.ErrUnreachable) || !errors.As(err, &e) || e.Worker != worker || e.Op != op {
		return fmt.Errorf("want a %s that tells of the death of %s, got %w", op, worker, err)
	}
	return nil
}

// Calls to a worker that is killed end, and those to others go on.
func TestKilledDuringCalls(t *testing.T) {
	crew := team.Start(t, 3, func(m *team.Member) error {
		a, err := joinCrew(m, serveStuck(m))
		if err != nil {
			return err
		}
		if m.Rank != 0 {
			return errors.Join(m.Await("leave"), a.Close())
		}
		// Not the time is over: the death is what ends it.
		ctx, cancel := context.WithTimeout(m.Context(), noticed)
		defer cancel()
		later := stuck.Go(ctx, a, "worker1", "later", agent.Timeout(0))
		_, err = stuck.Call(ctx, a, "worker1", "now", agent.Timeout(0))
		_, laterErr := later.Wait(ctx)
		_, newErr := double.Call(ctx, a, "worker1", 1, agent.Timeout(0))
		n, otherErr := double.Call(m.Context(), a, "worker2", 1)
		return errors.Join(gone(err, "call", "worker1"), gone(laterErr, "call", "worker1"), gone(newErr, "call", "worker1"),
			otherErr, want(2, n), a.Close())
	})
	for range 2 {
		crew.Line(1)
	}
	crew.Kill(1)
	require.NoError(t, crew.End(0))
	crew.Tell(2, "leave")
	crew.Wait()
}

// killedDuring kills one of three while the others wait for it in a barrier, or to
// shut down. All that is left blame it: they have all come by then, see comers.
func killedDuring(t *testing.T, victim int, op string, meet func(ctx context.Context, a *agent.Agent) error) {
	crew := team.Start(t, 3, func(m *team.Member) error {
		a, err := joinCrew(m, func(c *agent.Config) { c.Interceptors = []agent.Interceptor{comers(m)} })
		if err != nil {
			return err
		}
		err = a.Barrier(m.Context()) // so that there are pipes
		m.Say("ready")
		if m.Rank == victim {
			return errors.Join(err, m.Await("never"))
		}
		if err := errors.Join(err, m.Await("meet")); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(m.Context(), noticed)
		defer cancel()
		met := gone(meet(ctx, a), op, fmt.Sprint("worker", victim))
		return errors.Join(met, a.Close())
	})
	for rank := range 3 { // who answers the others in the barrier may be through before them
		crew.Await(rank, "ready")
	}
	crew.TellAll("meet")
	if victim != 0 {
		// It is the one who answers: who came later might find it gone as well.
		crew.Await(0, fmt.Sprintf("worker%d has come again", 3-victim))
	}
	crew.Kill(victim)
	crew.Wait()
}

// noticed is how long the death of a process stays unnoticed, at the most, on a machine
// that is very busy.
const noticed = 20 * time.Second

// comers has the one who answers in a gathering say who has come to another one than the
// first.
func comers(m *team.Member) agent.Interceptor {
	var mu sync.Mutex
	come := map[string]bool{}
	return agent.Interceptor{Decoded: func(_ context.Context, q *agent.Message) error {
		if q.Kind != agent.KindRequest || q.Type != "agent.group" {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if come[q.Peer.Name] {
			m.Say(q.Peer.Name + " has come again")
		}
		come[q.Peer.Name] = true
		return nil
	}}
}

func TestKilledDuringBarrier(t *testing.T) {
	for _, victim := range []int{0, 2} {
		t.Run(fmt.Sprint(victim), func(t *testing.T) {
			killedDuring(t, victim, "barrier", func(ctx context.Context, a *agent.Agent) error { return a.Barrier(ctx) })
		})
	}
}

func TestKilledDuringShutdown(t *testing.T) {
	for _, victim := range []int{0, 2} {
		t.Run(fmt.Sprint(victim), func(t *testing.T) {
			killedDuring(t, victim, "shutdown", func(ctx context.Context, a *agent.Agent) error { return a.Shutdown(ctx) })
		})
	}
}

// Who waits for a worker that was killed before it joined learns which one is missing.
func TestKilledBeforeJoin(t *testing.T) {
	crew := team.Start(t, 3, func(m *team.Member) error {
		if m.Rank == 1 {
			m.Say("ready")
			return m.Await("never")
		}
		ctx, cancel := context.WithCancel(m.Context())
		defer cancel()
		listen := sync.OnceFunc(func() {
			m.Say("waiting")
			go func() {
				_ = m.Await("enough") // or the end of the test
				cancel()
			}()
		})
		_, done, err := joinWatched(ctx, m, func(_ context.Context, op, _ string) error {
			if op == "wait" {
				listen()
			}
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			return fmt.Errorf("want the end of the context, got %w", err)
		}
		m.Say(err.Error())
		return done()
	})
	crew.Await(1, "ready")
	crew.Kill(1)
	for _, rank := range []int{0, 2} {
		crew.Await(rank, "waiting")
	}
	crew.TellAll("enough")
	require.Contains(t, crew.Line(0)+crew.Line(2), "rank 1 of 3 has not joined")
	crew.Wait()
}

// A worker that is stopped is not dead: a barrier waits for it, within its limit.
func TestStoppedMember(t *testing.T) {
	crew := team.Start(t, 2, func(m *team.Member) error {
		a, err := joinCrew(m, nil)
		if err != nil {
			return err
		}
		first := a.Barrier(m.Context())
		if m.Rank == 1 {
			m.Say("ready")
			return errors.Join(first, m.Await("go on"), a.Barrier(m.Context()), a.Shutdown(m.Context()))
		}
		if err := m.Await("stopped"); err != nil {
			return err
		}
		m.Say("waiting")
		return errors.Join(first, a.Barrier(m.Context()), a.Shutdown(m.Context()))
	})
	crew.Await(1, "ready")
	crew.Stop(1)
	crew.Tell(0, "stopped")
	crew.Await(0, "waiting")
	crew.Continue(1)
	crew.Tell(1, "go on")
	crew.Wait()
}

// A worker that is killed and started again takes its own place in a dynamic group. In
// a static one there is no place for it.
func TestRestartedMember(t *testing.T) {
	for _, static := range []bool{false, true} {
		t.Run(fmt.Sprint("static=", static), func(t *testing.T) { restarted(t, static) })
	}
}

func restarted(t *testing.T, static bool) {
	crew := team.Start(t, 2, func(m *team.Member) error {
		a, err := joinCrew(m, func(c *agent.Config) {
			serveStuck(m)(c)
			c.Replace = m.Life > 0
			if !static {
				c.WorldSize = 0
			}
		})
		if static && m.Life > 0 {
			if !errors.Is(err, agent.ErrJoined) {
				return fmt.Errorf("want ErrJoined, got %w", err)
			}
			m.Say("joined")
			return nil
		}
		if err != nil {
			return err
		}
		m.Say("joined")
		if m.Rank == 1 {
			return errors.Join(m.Await("leave"), a.Close())
		}
		return errors.Join(callRestarted(m, a, static), a.Close())
	})
	crew.Await(0, "joined")
	crew.Await(1, "joined")
	crew.Tell(0, "call")
	crew.Await(1, "stuck for worker0")
	crew.Kill(1)
	crew.Await(0, "failed")
	crew.Restart(1)
	crew.Await(1, "joined")
	crew.Tell(0, "again")
	require.NoError(t, crew.End(0))
	if !static {
		crew.Tell(1, "leave")
	}
	crew.Wait()
}

func callRestarted(m *team.Member, a *agent.Agent, static bool) error {
	if err := m.Await("call"); err != nil {
		return err
	}
	_, err := stuck.Call(m.Context(), a, "worker1", m.Name(), agent.Timeout(0))
	if err := gone(err, "call", "worker1"); err != nil {
		return err
	}
	m.Say("failed")
	if err := m.Await("again"); err != nil {
		return err
	}
	n, err := double.Call(m.Context(), a, "worker1", 21)
	if static {
		return gone(err, "call", "worker1")
	}
	return errors.Join(err, want(42, n))
}

// The store is with a process of its own. When it is stopped or killed the workers
// that have found each other go on, and closing does not wait for it for long.
func TestStoreGone(t *testing.T) {
	for _, how := range []string{"stopped", "killed"} {
		t.Run(how, func(t *testing.T) { storeGone(t, how) })
	}
}

func storeGone(t *testing.T, how string) {
	url := "tcp://" + freeport.Addr(t) // of the first process; others are told
	crew := team.Start(t, 3, func(m *team.Member) error {
		url, err := m.Line()
		if err != nil {
			return err
		}
		a, err := joinCrew(m, func(c *agent.Config) { c.Rendezvous = url; serveStuck(m)(c) })
		if err != nil {
			return err
		}
		m.Say("joined")
		if err := m.Await("gone"); err != nil {
			return err
		}
		n, err := double.Call(m.Context(), a, agent.Rank(3-m.Rank), 21)
		met := a.Barrier(m.Context(), "worker1", "worker2")
		return errors.Join(err, want(42, n), met, a.Close())
	})
	crew.TellAll(url)
	for rank := range 3 {
		crew.Await(rank, "joined")
	}
	if how == "killed" {
		crew.Kill(0)
	} else {
		crew.Stop(0)
	}
	for _, rank := range []int{1, 2} {
		crew.Tell(rank, "gone")
	}
	for _, rank := range []int{1, 2} {
		require.NoError(t, crew.End(rank))
	}
	crew.Kill(0)
	crew.Wait()
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
