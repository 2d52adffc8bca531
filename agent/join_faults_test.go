package agent_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
)

// crashPoint is a point during joining: before an operation on a key of the store, see package
// roster.
type crashPoint struct {
	op, key string // the operation, and a part of the key
	last    bool   // the others are waiting already
	counts  bool   // a worker that dies there is a member nonetheless
}

// observedStore calls reach before each operation.
type observedStore struct {
	store.Store
	reach func(ctx context.Context, op, key string) error
}

func (w observedStore) Set(ctx context.Context, key string, value []byte) error {
	if err := w.reach(ctx, "set", key); err != nil {
		return err
	}
	return w.Store.Set(ctx, key, value)
}

func (w observedStore) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	if err := w.reach(ctx, "swap", key); err != nil {
		return nil, err
	}
	return w.Store.CompareAndSet(ctx, key, expected, desired)
}

func (w observedStore) Wait(ctx context.Context, keys ...string) error {
	if err := w.reach(ctx, "wait", keys[0]); err != nil {
		return err
	}
	return w.Store.Wait(ctx, keys...)
}

// joinObserved joins the worker of the process m through a store that calls reach before each Set,
// CompareAndSet and Wait, with the name of the operation and a key; an error of reach fails the
// operation. It returns the agent, a function that closes the store, and the error of Join. The
// function is nil if the store could not be opened.
func joinObserved(ctx context.Context, m *procgroup.Member, reach func(ctx context.Context, op, key string) error) (*agent.Agent, func() error, error) {
	s, err := store.Open(ctx, m.Store, store.Options{})
	if err != nil {
		return nil, nil, err
	}
	c := configOf(m)
	c.Rendezvous, c.Store = "", observedStore{s, reach}
	serveDouble(m.Rank, &c)
	a, err := agent.Join(ctx, c)
	return a, s.Close, err
}

// If a worker is killed while it joins, at any of several points, the others learn of it. Either
// the worker was no member yet, and the others time out with an error that names its rank; or it
// was a member already, and calls to it fail.
func TestKilledDuringJoin(t *testing.T) {
	short.Skip(t, "waits for the time limit of Join")
	for name, end := range map[string]crashPoint{
		"first, about to open the group":    {"swap", "/gate", false, false},
		"first, about to take a rank":       {"swap", "/rank/", false, false},
		"first, with a rank and no name":    {"swap", "/name/", false, true},
		"first, waiting":                    {"wait", "/decided", false, true},
		"last, about to take a rank":        {"swap", "/rank/", true, false},
		"last, with a rank and no name":     {"swap", "/name/", true, true},
		"last, about to list the members":   {"set", "/list/", true, true},
		"last, about to complete the group": {"swap", "/gate", true, true},
		"last, about to notify the others":  {"set", "/decided", true, true},
	} {
		t.Run(name, func(t *testing.T) { end.kill(t) })
	}
}

func (end crashPoint) kill(t *testing.T) {
	group := procgroup.Start(t, 3, func(m *procgroup.Member) error {
		if m.Rank == 1 {
			return end.stopThere(m)
		}
		if err := m.WaitFor("join"); err != nil {
			return err
		}
		return end.joinSurvivor(m)
	})
	if end.last {
		for _, rank := range []int{0, 2} {
			group.Send(rank, "join")
			group.WaitFor(rank, "waiting")
		}
	}
	group.Send(1, "join")
	group.WaitFor(1, "there")
	group.Kill(1)
	if !end.last {
		group.SendAll("join")
	}
	for _, rank := range []int{0, 2} {
		group.WaitFor(rank, "done")
	}
	group.SendAll("leave")
	group.Wait()
}

// stopThere joins and blocks at the crash point end, where the test kills the process. If the
// others are waiting already, they may complete the group before that operation: stopThere then
// blocks after it has joined.
func (end crashPoint) stopThere(m *procgroup.Member) error {
	if err := m.WaitFor("join"); err != nil {
		return err
	}
	_, _, err := joinObserved(m.Context(), m, func(ctx context.Context, op, key string) error {
		if op != end.op || !strings.Contains(key, end.key) {
			return nil
		}
		m.Send("there")
		<-ctx.Done()
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	m.Send("there")
	return m.WaitFor("never")
}

// joinSurvivor joins the group of the worker that is killed, and returns nil if the outcome is the
// expected one for the crash point end: if that worker counts as a member, calls to it and barriers
// fail and other calls succeed; otherwise the join times out.
func (end crashPoint) joinSurvivor(m *procgroup.Member) error {
	ctx, cancel := context.WithTimeout(m.Context(), 20*time.Second)
	if !end.counts {
		cancel()
		ctx, cancel = context.WithTimeout(m.Context(), 2*time.Second)
	}
	defer cancel()
	a, closeStore, err := joinObserved(ctx, m, func(_ context.Context, op, _ string) error {
		if op == "wait" {
			m.Send("waiting")
		}
		return nil
	})
	if closeStore != nil {
		defer closeStore()
	}
	if !end.counts {
		m.Send("done")
		return errors.Join(missesOne(m, err), m.WaitFor("leave"))
	}
	if err != nil {
		return err
	}
	_, dead := double.Call(ctx, a, "worker1", 1, agent.WithTimeout(0))
	n, alive := double.Call(ctx, a, agent.Rank(2-m.Rank), 21)
	met := a.Barrier(ctx)
	m.Send("done")
	return errors.Join(wantDeath(dead, "call", "worker1"), alive, want(42, n), wantDeath(met, "barrier", "worker1"),
		m.WaitFor("leave"), a.Close())
}

// The other living worker may have timed out a moment before.
var rankOneMissing = regexp.MustCompile(`ranks? (0, )?1(, 2)? of 3 ha(s|ve) not joined`)

// missesOne returns nil if err is the error of a Join of m that timed out because the worker of
// rank 1 is missing, and an error that wraps err otherwise.
func missesOne(m *procgroup.Member, err error) error {
	var e *agent.Error
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &e) || e.Op != "join" || e.Worker != m.Name() || !rankOneMissing.MatchString(err.Error()) {
		return fmt.Errorf("want a join that misses rank 1, got %w", err)
	}
	return nil
}
