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
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
)

// wantTimeout returns nil if err is an *Error of the operation op that names worker and matches
// context.DeadlineExceeded. Otherwise it returns an error that wraps err.
func wantTimeout(err error, op, worker string) error {
	var e *agent.Error
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &e) || e.Op != op || e.Worker != worker {
		return fmt.Errorf("want a %s on %s that took too long, got %w", op, worker, err)
	}
	return nil
}

// wantIs returns nil if err matches wanted, and otherwise an error that wraps err.
func wantIs(err, wanted error) error {
	if !errors.Is(err, wanted) {
		return fmt.Errorf("want %q, got %w", wanted, err)
	}
	return nil
}

// The process of the store is stopped or killed and comes back, with or without the group's keys.
// Workers that know each other can call each other throughout. A Join during the outage fails when
// its context ends, and a Join after it succeeds.
func TestStoreComesBack(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"stopped", "killed"} {
		t.Run(how, func(t *testing.T) { storeComesBack(t, how) })
	}
}

func storeComesBack(t *testing.T, how string) {
	url := "tcp://" + freeport.Addr(t) // of the first process
	group := procgroup.Start(t, 4, func(m *procgroup.Member) error {
		url, err := m.ReadLine()
		switch {
		case err != nil:
			return err
		case m.Rank == 0:
			return keepStore(m, url)
		case m.Rank == 3:
			return joinDuringOutage(m, url, how)
		}
		return workThroughOutage(m, url, how)
	})
	group.Send(0, url)
	group.WaitFor(0, "serving")
	for _, rank := range []int{1, 2, 3} {
		group.Send(rank, url)
	}
	for _, word := range []string{"joined", "met"} {
		group.WaitFor(1, word)
		group.WaitFor(2, word)
		group.SendAll("go on")
	}
	if how == "stopped" {
		group.Stop(0)
	} else {
		group.Kill(0)
	}
	for _, rank := range []int{1, 2, 3} {
		group.Send(rank, "away")
	}
	for _, rank := range []int{1, 2, 3} {
		group.WaitFor(rank, "in between")
	}
	if how == "stopped" {
		group.Continue(0)
	} else {
		group.Restart(0)
		group.Send(0, url)
		group.WaitFor(0, "serving")
	}
	group.Send(3, "back")
	group.WaitFor(3, "joined")
	for _, rank := range []int{1, 2} {
		group.Send(rank, "back")
		group.WaitFor(rank, "done")
	}
	for rank := 3; rank >= 0; rank-- {
		group.Send(rank, "leave")
		require.NoError(t, group.WaitExit(rank))
	}
}

func keepStore(m *procgroup.Member, url string) error {
	s, err := store.Serve(m.Context(), strings.TrimPrefix(url, "tcp://"), store.ServerOptions{})
	if err != nil {
		return err
	}
	m.Send("serving")
	return errors.Join(m.WaitFor("leave"), s.Close())
}

// joinAt joins the worker of m, without a rank, to a dynamic group on the store at url, which
// another process serves. The worker serves double.
func joinAt(ctx context.Context, m *procgroup.Member, url string) (*agent.Agent, error) {
	c := configOf(m)
	c.Rendezvous, c.StoreOptions.Join = url, true
	c.Rank, c.WorldSize = -1, 0
	serveDouble(m.Rank, &c)
	return agent.Join(ctx, c)
}

// joinDuringOutage is the process that joins while the store at url is down, which must time out,
// and again when it is back. It returns nil if both joins, and a call after the second one, have
// the outcome that how, "stopped" or "killed", implies.
func joinDuringOutage(m *procgroup.Member, url, how string) error {
	if err := m.WaitFor("away"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(m.Context(), time.Second)
	defer cancel()
	if _, err := joinAt(ctx, m, url); wantTimeout(err, "join", "worker3") != nil || !errors.Is(err, store.ErrTimeout) {
		return fmt.Errorf("want a join that times out waiting for the store, got %w", err)
	}
	m.Send("in between")
	if err := m.WaitFor("back"); err != nil {
		return err
	}
	a, err := joinAt(m.Context(), m, url)
	if err != nil {
		return err
	}
	m.Send("joined")
	n, err := double.Call(m.Context(), a, "worker1", 21)
	if how == "killed" { // the store has lost the group
		err = wantIs(err, agent.ErrNoWorker)
		n = 42
	}
	return errors.Join(err, want(42, n), m.WaitFor("leave"), a.Close())
}

// workThroughOutage is a process that joins before the outage of the store at url. It returns nil
// if its calls and barriers during and after the outage have the outcome that how, "stopped" or
// "killed", implies.
func workThroughOutage(m *procgroup.Member, url, how string) error {
	a, err := joinAt(m.Context(), m, url)
	if err != nil {
		return err
	}
	other := agent.To(fmt.Sprint("worker", 3-m.Rank))
	m.Send("joined")
	if err := m.WaitFor("go on"); err != nil {
		return err
	}
	first, err := double.Call(m.Context(), a, other, 21) // reads the other worker from the store
	m.Send("met")
	if err := errors.Join(err, want(42, first), m.WaitFor("away")); err != nil {
		return err
	}
	n, err := double.Call(m.Context(), a, other, 21)
	met := a.Barrier(m.Context(), a.Self().To(), other)
	_, unknown := double.Call(m.Context(), a, "worker3", 1, agent.WithTimeout(200*time.Millisecond))
	m.Send("in between")
	err = errors.Join(err, want(42, n), met, wantTimeout(unknown, "call", "worker3"), wantIs(unknown, agent.ErrTimeout), m.WaitFor("back"))
	if err != nil {
		return err
	}
	n, err = double.Call(m.Context(), a, other, 21)
	_, unknown = double.Call(m.Context(), a, "worker3", 1)
	if how == "killed" {
		unknown = wantIs(unknown, agent.ErrStoreLost)
	}
	m.Send("done")
	return errors.Join(err, want(42, n), unknown, m.WaitFor("leave"), a.Close())
}

// If the first worker, which serves the store, is killed and restarted, the others can leave their
// group, whose keys are lost, and form another one with the first worker under the same name.
func TestFirstWorkerRestarts(t *testing.T) {
	url := "tcp://" + freeport.Addr(t) // of the first process
	group := procgroup.Start(t, 3, func(m *procgroup.Member) error {
		url, err := m.ReadLine()
		if err != nil {
			return err
		}
		if m.Rank == 0 {
			return serveFirst(m, url)
		}
		return joinTwice(m, url)
	})
	group.SendAll(url)
	for rank := range 3 {
		group.WaitFor(rank, "joined")
	}
	group.Kill(0)
	group.Restart(0)
	group.Send(0, url)
	group.WaitFor(0, "serving")
	group.SendAll("again")
	group.Wait()
}

// serveFirst is the process of the first worker: it serves the store at url and joins. In its first
// life it blocks until the test kills it. After the restart it shuts down.
func serveFirst(m *procgroup.Member, url string) error {
	s, err := store.Open(m.Context(), url, store.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	m.Send("serving")
	a, err := joinMember(m, func(c *agent.Config) { c.Rendezvous, c.Store = "", s; serveDouble(0, c) })
	if err != nil {
		return err
	}
	m.Send("joined")
	if m.Restarts == 0 {
		return errors.Join(m.WaitFor("never"), a.Close())
	}
	return a.Shutdown(m.Context())
}

// joinTwice is the process of another worker. It joins and waits until the first worker was
// restarted. Then it requires that calls to the first worker fail, leaves, joins again, calls the
// first worker and shuts down.
func joinTwice(m *procgroup.Member, url string) error {
	join := func() (*agent.Agent, error) {
		return joinMember(m, func(c *agent.Config) { c.Rendezvous = url; serveDouble(m.Rank, c) })
	}
	old, err := join()
	if err != nil {
		return err
	}
	m.Send("joined")
	if err := m.WaitFor("again"); err != nil {
		return errors.Join(err, old.Close())
	}
	_, dead := double.Call(m.Context(), old, "worker0", 1, agent.WithTimeout(0))
	if err := errors.Join(wantDeath(dead, "call", "worker0"), old.Close()); err != nil {
		return err
	}
	a, err := join()
	if err != nil {
		return err
	}
	n, err := double.Call(m.Context(), a, "worker0", 21)
	return errors.Join(err, want(42, n), a.Shutdown(m.Context()))
}
