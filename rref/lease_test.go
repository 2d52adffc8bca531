package rref_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

const lease = 30 * time.Second

// traffic counts the messages of a group by type, and drops those that a test selects.
type traffic struct {
	mu     sync.Mutex
	counts map[string]int // by the name of the sender, a space, and the type of the request
	drop   func(from string, m *agent.Message) bool
}

// hook returns the FaultHook of the worker with that name.
func (tr *traffic) hook(from string) func(*agent.Message) agent.Fault {
	return func(m *agent.Message) agent.Fault {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		if m.Kind == agent.KindRequest {
			tr.counts[from+" "+m.Type]++
		}
		return agent.Fault{Drop: tr.drop != nil && tr.drop(from, m)}
	}
}

func (tr *traffic) count(key string) int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.counts[key]
}

// dropIf makes the messages that f selects be lost from now on, none if f is nil.
func (tr *traffic) dropIf(f func(from string, m *agent.Message) bool) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.drop = f
}

// betweenTwo selects all messages between the workers a and b.
func betweenTwo(a, b string) func(string, *agent.Message) bool {
	return func(from string, m *agent.Message) bool {
		return from == a && m.Peer.Name == b || from == b && m.Peer.Name == a
	}
}

// inTime runs f with n workers in simulated time, whose messages pass through the traffic, and then
// shuts them down. No reference must be left.
func inTime(t *testing.T, n int, f func(t *testing.T, g *group, tr *traffic)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		tr := &traffic{counts: map[string]int{}}
		run(t, n, func(_ int, c *agent.Config, o *rref.Options) {
			o.Lease, c.FaultHook = lease, tr.hook(c.Name)
		}, func(t *testing.T, g *group) { f(t, g, tr) })
	})
}

// sleep lets simulated time pass.
func sleep(d time.Duration) { <-time.NewTimer(d).C }

// TestIdleLease checks that a worker which does nothing keeps its references, by at most three
// messages in each lease, and sends none after it has released the last one.
func TestIdleLease(t *testing.T) {
	inTime(t, 2, func(t *testing.T, g *group, tr *traffic) {
		f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
		sleep(20 * lease)
		heartbeats := tr.count("worker0 rref.renew")
		require.GreaterOrEqual(t, heartbeats, 20)
		require.LessOrEqual(t, heartbeats, 60)
		require.Zero(t, tr.count("worker1 rref.renew"), "the owner has no lease")
		v, err := f.ToHere(t.Context())
		require.NoError(t, err)
		require.Equal(t, 42, v)
		require.NoError(t, f.Release(t.Context()))
		sleep(lease)
		before := tr.count("worker0 rref.renew")
		sleep(10 * lease)
		require.Equal(t, before, tr.count("worker0 rref.renew"))
	})
}

// TestBusyLease checks that other messages between two workers renew the lease: there are no
// heartbeats.
func TestBusyLease(t *testing.T) {
	inTime(t, 2, func(t *testing.T, g *group, tr *traffic) {
		f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
		for range 200 {
			sleep(lease / 20)
			_, err := double.Call(t.Context(), g.agents[0], "worker1", 1)
			require.NoError(t, err)
		}
		require.Zero(t, tr.count("worker0 rref.renew"))
		v, err := f.ToHere(t.Context())
		require.NoError(t, err)
		require.Equal(t, 42, v)
		require.NoError(t, f.Release(t.Context()))
	})
}

// TestFenced checks that an owner which hears nothing from a user drops its references after a lease
// and not before, that the user then gets ErrFenced and no other value, and that it may refer to new
// values.
func TestFenced(t *testing.T) {
	inTime(t, 2, func(t *testing.T, g *group, tr *traffic) {
		f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
		_, err := f.Created().Wait(t.Context())
		require.NoError(t, err)
		tr.dropIf(betweenTwo("worker0", "worker1"))
		sleep(lease - time.Second)
		require.EqualValues(t, 1, g.refs[1].Metrics()["owner_rrefs"])
		sleep(lease / 4)
		require.EqualValues(t, 0, g.refs[1].Metrics()["owner_rrefs"])
		tr.dropIf(nil)
		_, err = f.ToHere(t.Context())
		require.ErrorIs(t, err, rref.ErrFenced)
		synctest.Wait()
		_, err = f.ToHere(t.Context())
		require.ErrorIs(t, err, rref.ErrFenced)
		require.ErrorContains(t, err, "worker1")
		require.False(t, f.IsConfirmed())
		_, err = fetch.Call(t.Context(), g.agents[0], "worker1", f)
		require.ErrorIs(t, err, rref.ErrFenced)
		again := rref.Remote(t.Context(), g.agents[0], "worker1", double, 4)
		v, err := again.ToHere(t.Context())
		require.NoError(t, err)
		require.Equal(t, 8, v)
		require.NoError(t, again.Release(t.Context()))
		require.NoError(t, f.Release(t.Context()))
	})
}

// TestLostMessagesFenceNobody checks that a connection that is cut for less than a lease has no effect
// on the references.
func TestLostMessagesFenceNobody(t *testing.T) {
	inTime(t, 2, func(t *testing.T, g *group, tr *traffic) {
		f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
		sleep(lease)
		const lost = lease/2 - time.Second/2 // messages are sent at full seconds
		for range 5 {
			tr.dropIf(betweenTwo("worker0", "worker1"))
			sleep(lost)
			tr.dropIf(nil)
			sleep(lease - lost)
		}
		v, err := f.ToHere(t.Context())
		require.NoError(t, err)
		require.Equal(t, 42, v)
		require.NoError(t, f.Release(t.Context()))
	})
}

// TestFencedParent checks that the owner refuses a fork whose parent is that of a fenced worker.
func TestFencedParent(t *testing.T) {
	inTime(t, 3, func(t *testing.T, g *group, tr *traffic) {
		f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
		_, err := f.Created().Wait(t.Context())
		require.NoError(t, err)
		tr.dropIf(betweenTwo("worker0", "worker1"))
		sleep(2 * lease)
		_, err = fetch.Call(t.Context(), g.agents[0], "worker2", f)
		require.ErrorIs(t, err, rref.ErrNoValue)
		require.ErrorContains(t, err, "worker1")
		tr.dropIf(nil)
		require.NoError(t, f.Release(t.Context()))
		sleep(lease)
	})
}

// TestStoppedOwner checks that an owner that was stopped for longer than a lease does not fence a user
// at once, whose messages it has not read yet, but does so when that stays silent.
func TestStoppedOwner(t *testing.T) {
	inTime(t, 2, func(t *testing.T, g *group, tr *traffic) {
		f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
		_, err := f.Created().Wait(t.Context())
		require.NoError(t, err)
		g.refs[1].StopFor(3 * lease)
		tr.dropIf(betweenTwo("worker0", "worker1"))
		sleep(lease / 2)
		require.EqualValues(t, 1, g.refs[1].Metrics()["forks"])
		sleep(lease)
		require.Zero(t, g.refs[1].Metrics()["forks"])
		tr.dropIf(nil)
		_, err = f.ToHere(t.Context())
		require.ErrorIs(t, err, rref.ErrFenced)
		require.NoError(t, f.Release(t.Context()))
		sleep(lease)
	})
}

// TestSharedBeforeFence checks that a worker keeps the reference that it has got from another one
// which is fenced later.
func TestSharedBeforeFence(t *testing.T) {
	inTime(t, 3, func(t *testing.T, g *group, tr *traffic) {
		f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
		_, err := f.Created().Wait(t.Context())
		require.NoError(t, err)
		_, err = hold.Call(t.Context(), g.agents[0], "worker2", holdArgs{map[string][]*rref.Ref[int]{"a": {f}}})
		require.NoError(t, err)
		tr.dropIf(betweenTwo("worker0", "worker1"))
		sleep(5 * lease)
		tr.dropIf(nil)
		require.EqualValues(t, 1, g.refs[1].Metrics()["forks"])
		v, err := held.refs[0].ToHere(t.Context())
		require.NoError(t, err)
		require.Equal(t, 42, v)
		releaseHeld(t)
		_, err = f.ToHere(t.Context())
		require.ErrorIs(t, err, rref.ErrFenced)
		require.NoError(t, f.Release(t.Context()))
	})
}

// TestLostReply checks that references in a reply, or in a request, that was lost are dropped after a
// lease at most, by their sender and by the owner.
func TestLostReply(t *testing.T) {
	for _, kind := range []agent.Kind{agent.KindRequest, agent.KindReply} {
		for _, owner := range []string{"worker0", "worker1", "worker2"} {
			t.Run(fmt.Sprint(kind, " to a value of ", owner), func(t *testing.T) {
				t.Parallel()
				inTime(t, 3, func(t *testing.T, g *group, tr *traffic) {
					f := rref.Remote(t.Context(), g.agents[0], agent.To(owner), double, 21)
					_, err := f.Created().Wait(t.Context())
					require.NoError(t, err)
					tr.dropIf(func(_ string, m *agent.Message) bool { return m.Kind == kind && m.Name == pass.Name() })
					_, err = pass.Call(t.Context(), g.agents[0], "worker1", f, agent.WithTimeout(time.Second))
					require.ErrorIs(t, err, agent.ErrTimeout)
					require.NoError(t, f.Release(t.Context()))
					sleep(3 * lease)
					g.requireEmpty()
				})
			})
		}
	}
}

// TestClosedMember checks that references to the values of a member that was closed without Shutdown,
// and those of it, are dropped at once in a dynamic group, and that the errors name it.
func TestClosedMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t, 2, func(_ int, c *agent.Config, o *rref.Options) { c.Rank, c.WorldSize, o.Lease = -1, 0, lease })
		f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
		theirs := rref.Remote(t.Context(), g.agents[1], "worker0", double, 1)
		for _, r := range []*rref.Ref[int]{f, theirs} {
			_, err := r.Created().Wait(t.Context())
			require.NoError(t, err)
		}
		require.EqualValues(t, 1, g.refs[0].Metrics()["owner_rrefs"])
		require.NoError(t, g.agents[1].Close())
		synctest.Wait()
		_, err := f.ToHere(t.Context())
		var gone *rref.OwnerError
		require.ErrorAs(t, err, &gone)
		require.Equal(t, "worker1", gone.Owner)
		require.ErrorIs(t, err, rref.ErrOwnerGone)
		require.NoError(t, f.Release(t.Context()))
		require.Equal(t, empty, g.refs[0].Metrics())
		require.NoError(t, g.agents[0].Shutdown(t.Context()))
	})
}

// TestLeavingOwner checks that a member which leaves a dynamic group releases its references, and that
// references to its values name it.
func TestLeavingOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t, 2, func(rank int, c *agent.Config, o *rref.Options) { c.Rank, c.WorldSize, o.Lease = -1, 0, lease })
		f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
		back := rref.Remote(t.Context(), g.agents[1], "worker0", double, 21)
		for _, r := range []*rref.Ref[int]{f, back} {
			_, err := r.Created().Wait(t.Context())
			require.NoError(t, err)
		}
		require.NoError(t, g.agents[1].Shutdown(t.Context()))
		synctest.Wait()
		require.EqualValues(t, 0, g.refs[0].Metrics()["owner_rrefs"])
		_, err := f.ToHere(t.Context())
		require.ErrorIs(t, err, rref.ErrOwnerGone)
		require.ErrorContains(t, err, "worker1")
		require.NoError(t, g.agents[0].Shutdown(t.Context()))
	})
}

// TestLimits checks that a worker cannot have more references, or messages that wait for one, than the
// owner allows.
func TestLimits(t *testing.T) {
	run(t, 2, func(_ int, _ *agent.Config, o *rref.Options) { o.MaxReferences = 3 }, func(t *testing.T, g *group) {
		var all []*rref.Ref[int]
		for range 3 {
			f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 1)
			_, err := f.ToHere(t.Context())
			require.NoError(t, err)
			all = append(all, f)
		}
		more := rref.Remote(t.Context(), g.agents[0], "worker1", double, 1)
		_, err := more.ToHere(t.Context())
		require.ErrorIs(t, err, agent.ErrOverloaded)
		for _, f := range append(all, more) {
			require.NoError(t, f.Release(t.Context()))
		}
		g.requireEmpty()
	})
}

// keeps is a function whose replies are kept for repeated requests.
var keeps = agent.NewFunc[int, *rref.Ref[int]]("test.keeps")

// TestKeptReply checks that a reply that is sent again brings references that can be used, although
// the receiver has released those of the first reply, and that they are dropped with the kept reply.
func TestKeptReply(t *testing.T) {
	for _, owner := range []string{"worker1", "worker2", "worker0"} {
		t.Run("to a value of "+owner, func(t *testing.T) {
			run(t, 3, func(rank int, c *agent.Config, o *rref.Options) {
				c.Limits.MaxRemembered = 1
				c.Funcs = append(slices.Clone(c.Funcs), keeps.Serve(func(ctx context.Context, n int) (*rref.Ref[int], error) {
					a := agent.FromContext(ctx)
					if owner == a.Self().Name {
						return rref.Own(a, n), nil
					}
					return rref.Remote(ctx, a, agent.To(owner), double, n), nil
				}, agent.WithOnce()))
			}, func(t *testing.T, g *group) {
				for range 3 {
					f, err := keeps.Call(t.Context(), g.agents[0], "worker1", 5, agent.WithIdempotencyKey("k"))
					require.NoError(t, err)
					v, err := f.ToHere(t.Context())
					require.NoError(t, err)
					require.Contains(t, []int{5, 10}, v)
					require.NoError(t, f.Release(t.Context()))
				}
				f, err := keeps.Call(t.Context(), g.agents[0], "worker1", 6, agent.WithIdempotencyKey("another"))
				require.NoError(t, err)
				require.NoError(t, f.Release(t.Context()))
			})
		})
	}
}
