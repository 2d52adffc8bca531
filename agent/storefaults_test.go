package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/team"
)

// late is an error unless err says that an operation took too long, by the worker of
// that name.
func late(err error, op, worker string) error {
	var e *agent.Error
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &e) || e.Op != op || e.Worker != worker {
		return fmt.Errorf("want a %s on %s that took too long, got %w", op, worker, err)
	}
	return nil
}

// is is an error unless err matches what is wanted.
func is(err, wanted error) error {
	if !errors.Is(err, wanted) {
		return fmt.Errorf("want %q, got %w", wanted, err)
	}
	return nil
}

// The store is with a process of its own, is stopped or killed, and comes back: with the
// group or without it. Workers that know each other go on all the time. Who comes while
// it is away learns that in time.
func TestStoreComesBack(t *testing.T) {
	for _, how := range []string{"stopped", "killed"} {
		t.Run(how, func(t *testing.T) { storeComesBack(t, how) })
	}
}

func storeComesBack(t *testing.T, how string) {
	url := "tcp://" + freeport.Addr(t) // of the first process; others are told
	crew := team.Start(t, 4, func(m *team.Member) error {
		url, err := m.Line()
		switch {
		case err != nil:
			return err
		case m.Rank == 0:
			return keepStore(m, url)
		case m.Rank == 3:
			return comeBetween(m, url, how)
		}
		return goOn(m, url, how)
	})
	crew.Tell(0, url)
	crew.Await(0, "serving")
	for _, rank := range []int{1, 2, 3} {
		crew.Tell(rank, url)
	}
	for _, word := range []string{"joined", "met"} {
		crew.Await(1, word)
		crew.Await(2, word)
		crew.TellAll("go on")
	}
	if how == "stopped" {
		crew.Stop(0)
	} else {
		crew.Kill(0)
	}
	for _, rank := range []int{1, 2, 3} {
		crew.Tell(rank, "away")
	}
	for _, rank := range []int{1, 2, 3} {
		crew.Await(rank, "in between")
	}
	if how == "stopped" {
		crew.Continue(0)
	} else {
		crew.Restart(0)
		crew.Tell(0, url)
		crew.Await(0, "serving")
	}
	crew.Tell(3, "back")
	crew.Await(3, "joined")
	for _, rank := range []int{1, 2} {
		crew.Tell(rank, "back")
		crew.Await(rank, "done")
	}
	for rank := 3; rank >= 0; rank-- {
		crew.Tell(rank, "leave")
		require.NoError(t, crew.End(rank))
	}
}

func keepStore(m *team.Member, url string) error {
	s, err := store.Serve(m.Context(), strings.TrimPrefix(url, "tcp://"), store.ServerOptions{})
	if err != nil {
		return err
	}
	m.Say("serving")
	return errors.Join(m.Await("leave"), s.Close())
}

// joinAt joins a dynamic group by a store that another process serves.
func joinAt(ctx context.Context, m *team.Member, url string) (*agent.Agent, error) {
	c := configOf(m)
	c.Rendezvous, c.StoreOptions.Join = url, true
	c.Rank, c.WorldSize = -1, 0
	serveDouble(m.Rank, &c)
	return agent.Join(ctx, c)
}

// comeBetween joins while the store is away, and again when it is back.
func comeBetween(m *team.Member, url, how string) error {
	if err := m.Await("away"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(m.Context(), time.Second)
	defer cancel()
	if _, err := joinAt(ctx, m, url); late(err, "join", "worker3") != nil || !errors.Is(err, store.ErrTimeout) {
		return fmt.Errorf("want a join that waits for the store in vain, got %w", err)
	}
	m.Say("in between")
	if err := m.Await("back"); err != nil {
		return err
	}
	a, err := joinAt(m.Context(), m, url)
	if err != nil {
		return err
	}
	m.Say("joined")
	n, err := double.Call(m.Context(), a, "worker1", 21)
	if how == "killed" { // there is no group for the others any more
		err = is(err, agent.ErrNoWorker)
		n = 42
	}
	return errors.Join(err, want(42, n), m.Await("leave"), a.Close())
}

// goOn is what a worker does that has joined before the store goes.
func goOn(m *team.Member, url, how string) error {
	a, err := joinAt(m.Context(), m, url)
	if err != nil {
		return err
	}
	other := agent.To(fmt.Sprint("worker", 3-m.Rank))
	m.Say("joined")
	if err := m.Await("go on"); err != nil {
		return err
	}
	first, err := double.Call(m.Context(), a, other, 21) // which finds the other one
	m.Say("met")
	if err := errors.Join(err, want(42, first), m.Await("away")); err != nil {
		return err
	}
	n, err := double.Call(m.Context(), a, other, 21)
	met := a.Barrier(m.Context(), a.Self().To(), other)
	_, unknown := double.Call(m.Context(), a, "worker3", 1, agent.Timeout(200*time.Millisecond))
	m.Say("in between")
	err = errors.Join(err, want(42, n), met, late(unknown, "call", "worker3"), is(unknown, agent.ErrTimeout), m.Await("back"))
	if err != nil {
		return err
	}
	n, err = double.Call(m.Context(), a, other, 21)
	_, unknown = double.Call(m.Context(), a, "worker3", 1)
	if how == "killed" {
		unknown = is(unknown, agent.ErrStoreLost)
	}
	m.Say("done")
	return errors.Join(err, want(42, n), unknown, m.Await("leave"), a.Close())
}

// The first worker, with which the store is, is killed and started again. The others leave
// their group, of which the store knows nothing any more, and form another one with it
// under the same name.
func TestFirstWorkerStartsAgain(t *testing.T) {
	url := "tcp://" + freeport.Addr(t) // of the first process; others are told
	crew := team.Start(t, 3, func(m *team.Member) error {
		url, err := m.Line()
		if err != nil {
			return err
		}
		if m.Rank == 0 {
			return serveFirst(m, url)
		}
		return joinTwice(m, url)
	})
	crew.TellAll(url)
	for rank := range 3 {
		crew.Await(rank, "joined")
	}
	crew.Kill(0)
	crew.Restart(0)
	crew.Tell(0, url)
	crew.Await(0, "serving")
	crew.TellAll("again")
	crew.Wait()
}

// serveFirst is the first worker, and serves the store.
func serveFirst(m *team.Member, url string) error {
	s, err := store.Open(m.Context(), url, store.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	m.Say("serving")
	a, err := joinCrew(m, func(c *agent.Config) { c.Rendezvous, c.Store = "", s; serveDouble(0, c) })
	if err != nil {
		return err
	}
	m.Say("joined")
	if m.Life == 0 {
		return errors.Join(m.Await("never"), a.Close())
	}
	return a.Shutdown(m.Context())
}

// joinTwice joins, and again when the first worker has been started again.
func joinTwice(m *team.Member, url string) error {
	join := func() (*agent.Agent, error) {
		return joinCrew(m, func(c *agent.Config) { c.Rendezvous = url; serveDouble(m.Rank, c) })
	}
	old, err := join()
	if err != nil {
		return err
	}
	m.Say("joined")
	if err := m.Await("again"); err != nil {
		return errors.Join(err, old.Close())
	}
	_, dead := double.Call(m.Context(), old, "worker0", 1, agent.Timeout(0))
	if err := errors.Join(gone(dead, "call", "worker0"), old.Close()); err != nil {
		return err
	}
	a, err := join()
	if err != nil {
		return err
	}
	n, err := double.Call(m.Context(), a, "worker0", 21)
	return errors.Join(err, want(42, n), a.Shutdown(m.Context()))
}
