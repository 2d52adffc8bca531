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
	"github.com/tensorpipe-go/tensorpipe/internal/team"
)

// deadEnd is a point on the way into a group: before something is done to a key of the
// store, see package roster.
type deadEnd struct {
	op, key string // the operation, and what the key has in its name
	last    bool   // the others wait already
	counts  bool   // who dies there is a member all the same
}

// watched is a store that tells where its user is.
type watched struct {
	store.Store
	reach func(ctx context.Context, op, key string) error
}

func (w watched) Set(ctx context.Context, key string, value []byte) error {
	if err := w.reach(ctx, "set", key); err != nil {
		return err
	}
	return w.Store.Set(ctx, key, value)
}

func (w watched) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	if err := w.reach(ctx, "swap", key); err != nil {
		return nil, err
	}
	return w.Store.CompareAndSet(ctx, key, expected, desired)
}

func (w watched) Wait(ctx context.Context, keys ...string) error {
	if err := w.reach(ctx, "wait", keys[0]); err != nil {
		return err
	}
	return w.Store.Wait(ctx, keys...)
}

// joinWatched joins a process by a store that tells where it is.
func joinWatched(ctx context.Context, m *team.Member, reach func(ctx context.Context, op, key string) error) (*agent.Agent, func() error, error) {
	s, err := store.Open(ctx, m.Store, store.Options{})
	if err != nil {
		return nil, nil, err
	}
	c := configOf(m)
	c.Rendezvous, c.Store = "", watched{s, reach}
	serveDouble(m.Rank, &c)
	a, err := agent.Join(ctx, c)
	return a, s.Close, err
}

// A worker that is killed on its way into a group either is missing, and the others
// learn which one it is when their time is over; or it was a member already, and they
// learn that it is dead.
func TestKilledDuringJoin(t *testing.T) {
	for name, end := range map[string]deadEnd{
		"first, about to open the group":      {"swap", "/gate", false, false},
		"first, about to take a rank":         {"swap", "/rank/", false, false},
		"first, with a rank and no name":      {"swap", "/name/", false, true},
		"first, waiting":                      {"wait", "/decided", false, true},
		"last, about to take a rank":          {"swap", "/rank/", true, false},
		"last, with a rank and no name":       {"swap", "/name/", true, true},
		"last, about to list the members":     {"set", "/list/", true, true},
		"last, about to complete the group":   {"swap", "/gate", true, true},
		"last, about to tell that it is done": {"set", "/decided", true, true},
	} {
		t.Run(name, func(t *testing.T) { end.kill(t) })
	}
}

func (end deadEnd) kill(t *testing.T) {
	crew := team.Start(t, 3, func(m *team.Member) error {
		if m.Rank == 1 {
			return end.goThere(m)
		}
		if err := m.Await("join"); err != nil {
			return err
		}
		return end.outlive(m)
	})
	if end.last {
		for _, rank := range []int{0, 2} {
			crew.Tell(rank, "join")
			crew.Await(rank, "waiting")
		}
	}
	crew.Tell(1, "join")
	crew.Await(1, "there")
	crew.Kill(1)
	if !end.last {
		crew.TellAll("join")
	}
	for _, rank := range []int{0, 2} {
		crew.Await(rank, "done")
	}
	crew.TellAll("leave")
	crew.Wait()
}

// goThere joins, and stays at the point to be killed there. Where the others wait
// already they may complete the group before it gets there.
func (end deadEnd) goThere(m *team.Member) error {
	if err := m.Await("join"); err != nil {
		return err
	}
	_, _, err := joinWatched(m.Context(), m, func(ctx context.Context, op, key string) error {
		if op != end.op || !strings.Contains(key, end.key) {
			return nil
		}
		m.Say("there")
		<-ctx.Done()
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	m.Say("there")
	return m.Await("never")
}

// outlive joins without the dead one, or with it.
func (end deadEnd) outlive(m *team.Member) error {
	ctx, cancel := context.WithTimeout(m.Context(), 20*time.Second)
	if !end.counts {
		cancel()
		ctx, cancel = context.WithTimeout(m.Context(), 2*time.Second)
	}
	defer cancel()
	a, closeStore, err := joinWatched(ctx, m, func(_ context.Context, op, _ string) error {
		if op == "wait" {
			m.Say("waiting")
		}
		return nil
	})
	if closeStore != nil {
		defer closeStore()
	}
	if !end.counts {
		m.Say("done")
		return errors.Join(missesOne(m, err), m.Await("leave"))
	}
	if err != nil {
		return err
	}
	_, dead := double.Call(ctx, a, "worker1", 1, agent.Timeout(0))
	n, alive := double.Call(ctx, a, agent.Rank(2-m.Rank), 21)
	met := a.Barrier(ctx)
	m.Say("done")
	return errors.Join(gone(dead, "call", "worker1"), alive, want(42, n), gone(met, "barrier", "worker1"),
		m.Await("leave"), a.Close())
}

// The other one who is alive may have given up a moment before.
var rankOneMissing = regexp.MustCompile(`ranks? (0, )?1(, 2)? of 3 ha(s|ve) not joined`)

// missesOne is an error unless err says that it took too long to wait for the rank 1.
func missesOne(m *team.Member, err error) error {
	var e *agent.Error
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &e) || e.Op != "join" || e.Worker != m.Name() || !rankOneMissing.MatchString(err.Error()) {
		return fmt.Errorf("want a join that misses rank 1, got %w", err)
	}
	return nil
}
