package rref_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// killable is a worker in a process of its own. The process of rank victim kills itself before it
// sends its killAt-th message of a scenario.
type killable struct {
	m      *procgroup.Member
	a      *agent.Agent
	refs   *rref.Refs
	sent   atomic.Int64
	killAt atomic.Int64

	evictions atomic.Int64

	mu   sync.Mutex
	held []*rref.Ref[int]
}

// victim is the rank of the process that is killed.
const victim = 2

var (
	settle    = agent.NewFunc[agent.None, agent.None]("killed.settle")
	keepOne   = agent.NewFunc[*rref.Ref[int], int]("killed.keep")
	ownOne    = agent.NewFunc[string, agent.None]("killed.own")
	giveOne   = agent.NewFunc[string, *rref.Ref[int]]("killed.give")
	giveAgain = agent.NewFunc[string, *rref.Ref[int]]("killed.giveAgain")
)

// joinKillable joins the worker of the process m in a dynamic group.
func joinKillable(m *procgroup.Member) (*killable, error) {
	k := &killable{m: m, refs: rref.New(rref.Options{Lease: 2 * time.Second})}
	c := agent.Config{
		Name: m.Name(), Rank: m.Rank, Rendezvous: m.Store, Replace: m.Restarts > 0, Logger: slog.New(slog.DiscardHandler),
		Extensions: []agent.Extension{k.refs}, FaultHook: k.count, Funcs: k.functions(),
	}
	c.Limits.MaxRemembered = 1
	var err error
	k.a, err = agent.Join(m.Context(), c)
	return k, err
}

// count counts the message m, and kills the process if it is the one.
func (k *killable) count(m *agent.Message) (none agent.Fault) {
	if m.Name == settle.Name() || m.Kind == agent.KindCancel || m.Type == "agent.group" || m.Type == "rref.renew" {
		return none
	}
	if k.sent.Add(1) == k.killAt.Load() {
		k.m.Send("killed")
		p, _ := os.FindProcess(os.Getpid()) // cannot fail: this process exists
		_ = p.Kill()
		select {} // until the signal arrives
	}
	return none
}

func (k *killable) functions() agent.Funcs {
	return agent.Funcs{
		double.Serve(func(_ context.Context, n int) (int, error) { return 2 * n, nil }),
		settle.Serve(func(ctx context.Context, _ agent.None) (agent.None, error) { return agent.None{}, k.awaitEmpty(ctx) }),
		keepOne.Serve(func(ctx context.Context, f *rref.Ref[int]) (int, error) {
			k.hold(f)
			return f.ToHere(ctx)
		}),
		ownOne.Serve(func(ctx context.Context, to string) (agent.None, error) { return agent.None{}, k.shareOwn(ctx, to) }),
		giveOne.Serve(k.give),
		giveAgain.Serve(k.give, agent.WithOnce()),
		forgetReply.Serve(func(context.Context, int) (int, error) { return 0, nil }, agent.WithOnce()),
	}
}

func (k *killable) hold(f *rref.Ref[int]) *rref.Ref[int] {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = append(k.held, f)
	return f
}

// give returns a reference to a new value on the worker with the given name. Like all handlers it may
// run before Join has returned.
func (k *killable) give(ctx context.Context, owner string) (*rref.Ref[int], error) {
	return rref.Remote(ctx, agent.FromContext(ctx), agent.To(owner), double, 21), nil
}

// shareOwn sends a reference to a value of this worker to another one.
func (k *killable) shareOwn(ctx context.Context, to string) error {
	a := agent.FromContext(ctx)
	_, err := keepOne.Call(ctx, a, agent.To(to), k.hold(rref.Own(a, 42)))
	return err
}

// evict has the worker with that name drop the reply that it keeps for this one, for another reply.
func (k *killable) evict(ctx context.Context, name string) error {
	key := agent.WithIdempotencyKey(fmt.Sprint("last", k.evictions.Add(1)))
	_, err := forgetReply.Call(ctx, k.a, agent.To(name), 0, key)
	return err
}

// releaseHeld releases all references that this worker holds. The error is not nil if one to a value
// of a process that was killed does not name it.
func (k *killable) releaseHeld(ctx context.Context, dead string) (err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range k.held {
		if f.OwnerName() == dead {
			if _, failed := f.ToHere(ctx); failed == nil || !strings.Contains(failed.Error(), dead) {
				err = errors.Join(err, fmt.Errorf("the error of %v is %w", f, failed))
			}
		}
		err = errors.Join(err, f.Release(ctx))
	}
	k.held = nil
	return err
}

// awaitEmpty releases what this worker holds and waits until its tables are empty.
func (k *killable) awaitEmpty(ctx context.Context) error {
	if err := k.releaseHeld(ctx, ""); err != nil {
		return err
	}
	for !maps.Equal(empty, k.refs.Metrics()) {
		runtime.GC() // finds references that handlers have returned
		select {
		case <-ctx.Done():
			var dump strings.Builder
			return errors.Join(context.Cause(ctx), k.refs.Dump(&dump), errors.New(dump.String()))
		case <-time.NewTimer(time.Millisecond).C:
		}
	}
	return nil
}

// meet calls the worker with that name until a call succeeds, so that this worker knows the process that
// has the name now.
func (k *killable) meet(ctx context.Context, name string) error {
	for {
		_, err := double.Call(ctx, k.a, agent.To(name), 1)
		if err == nil || ctx.Err() != nil {
			return err
		}
		<-time.NewTimer(time.Millisecond).C
	}
}

// scenarios are the ways to share a reference: a is the worker that begins, owner has the value, and
// other is the third one.
var scenarios = map[string]func(ctx context.Context, k *killable, owner, other string) error{
	"creation": func(ctx context.Context, k *killable, owner, _ string) error {
		_, err := k.hold(rref.Remote(ctx, k.a, agent.To(owner), double, 21)).ToHere(ctx)
		return err
	},
	"user to owner": func(ctx context.Context, k *killable, owner, _ string) error {
		_, err := keepOne.Call(ctx, k.a, agent.To(owner), k.hold(rref.Remote(ctx, k.a, agent.To(owner), double, 21)))
		return err
	},
	"owner to user": func(ctx context.Context, k *killable, owner, other string) error {
		_, err := ownOne.Call(ctx, k.a, agent.To(owner), other)
		return err
	},
	"user to user": func(ctx context.Context, k *killable, owner, other string) error {
		_, err := keepOne.Call(ctx, k.a, agent.To(other), k.hold(rref.Remote(ctx, k.a, agent.To(owner), double, 21)))
		return err
	},
	"reply": func(ctx context.Context, k *killable, owner, other string) error {
		f, err := giveOne.Call(ctx, k.a, agent.To(other), owner)
		if err == nil {
			_, err = k.hold(f).ToHere(ctx)
		}
		return err
	},
	"kept reply": func(ctx context.Context, k *killable, owner, other string) error {
		f, err := giveAgain.Call(ctx, k.a, agent.To(other), owner, agent.WithRetry(agent.Retry{Max: 1, Delay: time.Millisecond}))
		if err == nil {
			_, err = k.hold(f).ToHere(ctx)
		}
		return errors.Join(err, k.evict(ctx, other))
	},
}

// TestKilled kills one of three processes before each message that it sends while a reference is
// made, shared, fetched and released, in each of the three roles. The process is removed from the
// group, or another one replaces it. Then no table of the other processes has anything left, and the
// errors of references to its values name it.
func TestKilled(t *testing.T) {
	short.Skip(t, "starts and kills processes")
	for name, scenario := range scenarios {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of the time is leases
			killInScenario(t, scenario)
		})
	}
}

func killInScenario(t *testing.T, scenario func(context.Context, *killable, string, string) error) {
	group := procgroup.Start(t, 3, func(m *procgroup.Member) error { return runKillable(m, scenario) })
	for rank := range 3 {
		group.WaitFor(rank, "joined")
	}
	round := 0
	for _, roles := range [][3]int{{victim, 0, 1}, {0, victim, 1}, {0, 1, victim}} {
		for n, total := 0, 0; n <= total; n++ { // the first run counts the messages
			if n > 0 && !race.Includes(n, total+1, 3) {
				continue
			}
			group.Send(victim, fmt.Sprint("kill ", n))
			group.WaitFor(victim, "armed")
			group.Send(roles[0], fmt.Sprintf("begin worker%d worker%d", roles[1], roles[2]))
			begun := group.ReadLine(roles[0])
			if n == 0 {
				require.Equal(t, "done: <nil>", begun)
				group.Send(victim, "count")
				_, err := fmt.Sscan(group.ReadLine(victim), &total)
				require.NoError(t, err)
				continue
			}
			round++
			group.Kill(victim) // which has killed itself, unless it has sent fewer messages this time
			replaceVictim(group, round%2 == 0)
		}
	}
	require.Greater(t, round, 1)
	group.SendAll("leave")
	group.Wait()
}

// replaceVictim replaces the process that was killed, after another one has removed it from the group
// if removes is true, and checks that the other processes have no references left.
func replaceVictim(group *procgroup.Group, removes bool) {
	if removes {
		group.Send(0, "remove")
		group.WaitFor(0, "removed")
	} else {
		group.Restart(victim)
		group.WaitFor(victim, "joined")
	}
	for _, rank := range []int{0, 1} {
		group.Send(rank, "check")
	}
	for _, rank := range []int{0, 1} {
		group.WaitFor(rank, "empty")
	}
	if removes {
		group.Restart(victim)
		group.WaitFor(victim, "joined")
	}
	for _, rank := range []int{0, 1} {
		group.Send(rank, "meet") // a creation that is meant for the process before would fail
		group.WaitFor(rank, "met")
	}
}

// runKillable is a process of the test. It executes the commands of the test.
func runKillable(m *procgroup.Member, scenario func(context.Context, *killable, string, string) error) error {
	k, err := joinKillable(m)
	if err != nil {
		return err
	}
	m.Send("joined")
	ctx, dead := m.Context(), fmt.Sprint("worker", victim)
	for {
		line, err := m.ReadLine()
		if err != nil {
			return err
		}
		words := strings.Fields(line)
		switch words[0] {
		case "kill":
			k.sent.Store(0)
			var n int64
			_, err = fmt.Sscan(words[1], &n)
			k.killAt.Store(n)
			m.Send("armed")
		case "begin":
			err := scenario(ctx, k, words[1], words[2])
			m.Send(fmt.Sprint("done: ", k.finish(ctx, err)))
		case "count":
			m.Send(fmt.Sprint(k.sent.Load()))
		case "remove":
			err = k.a.Remove(ctx, agent.To(dead))
			m.Send("removed")
		case "check":
			survivor := fmt.Sprint("worker", 1-m.Rank)
			err = errors.Join(k.releaseHeld(ctx, dead), k.evict(ctx, survivor), k.awaitEmpty(ctx))
			m.Send("empty")
		case "meet":
			err = k.meet(ctx, dead)
			m.Send("met")
		case "leave":
			return k.a.Shutdown(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// finish releases, after a scenario that has ended with err, the references of all workers, and waits
// until their tables are empty. If a process was killed they stay.
func (k *killable) finish(ctx context.Context, err error) error {
	if err != nil {
		return err
	}
	var all [3]*agent.Future[agent.None] // concurrent, since an owner waits for its users
	for rank := range all {
		to := agent.To(fmt.Sprint("worker", rank))
		all[rank] = settle.Go(ctx, k.a, to, agent.None{}, agent.WithTimeout(10*time.Second))
	}
	for _, f := range all {
		_, failed := f.Wait(ctx)
		err = errors.Join(err, failed)
	}
	return err
}
