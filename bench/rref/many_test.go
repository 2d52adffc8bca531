package rref

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// sharers is the number of workers to which one reference is passed.
const sharers = 64

// many is the number of references that live at the same time, fewer under the race detector.
func many() int {
	if race.Enabled {
		return 10_000
	}
	return 100_000
}

// bytesPerReference makes worker1 create references to values of this process, the owner, and returns
// the bytes that each takes at both ends.
func bytesPerReference(t testing.TB, a *agent.Agent) (user, owner float64) {
	t.Helper()
	_, err := Create.Call(t.Context(), a, "worker1", 1000) // memory for the first references remains
	require.NoError(t, err)
	_, err = Drop.Call(t.Context(), a, "worker1", agent.None{})
	require.NoError(t, err)
	before := footprint()
	grown, err := Create.Call(t.Context(), a, "worker1", many())
	require.NoError(t, err)
	r, err := rref.Of(a)
	require.NoError(t, err)
	require.EqualValues(t, many(), r.Metrics()["owner_rrefs"])
	return float64(grown) / float64(many()), float64(footprint()-before) / float64(many())
}

// messages counts the messages about references that a worker sends and receives, requests and
// replies.
type messages struct{ count atomic.Int64 }

func (m *messages) configure(c *agent.Config) {
	note := func(message *agent.Message) {
		if strings.HasPrefix(message.Type, "rref.") {
			m.count.Add(1)
		}
	}
	c.Interceptors = append(c.Interceptors, agent.Interceptor{
		Encoding: func(_ context.Context, message *agent.Message) error { note(message); return nil },
		Received: func(ctx context.Context, message *agent.Message) (context.Context, error) {
			note(message)
			return ctx, nil
		},
	})
}

// TestManyReferences tests that each of 100,000 references takes at most 600 bytes at either end,
// beside the value, and that dropping them takes at most 2,000 messages and leaves nothing.
func TestManyReferences(t *testing.T) {
	var seen messages
	a := processes(t, 2, "", seen.configure)
	user, owner := bytesPerReference(t, a)
	t.Logf("a reference takes %.0f bytes at the user, and %.0f at the owner", user, owner)
	if !race.Enabled { // which takes memory itself
		require.LessOrEqual(t, user, 600.0)
		require.LessOrEqual(t, owner, 600.0)
	}

	before := seen.count.Load()
	require.GreaterOrEqual(t, before, int64(2*many()), "a request and a reply for each creation")
	_, err := Drop.Call(t.Context(), a, "worker1", agent.None{})
	require.NoError(t, err)
	r, err := rref.Of(a)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return r.Metrics()["forks"] == 0 }, testwait.Limit, time.Millisecond)
	require.Zero(t, r.Metrics()["owner_rrefs"])
	took := seen.count.Load() - before
	t.Logf("%d messages", took)
	require.Positive(t, took)
	require.LessOrEqual(t, took, int64(2000))
}

// BenchmarkMany measures the memory of 100,000 references at either end, the time until all are
// dropped, and the calls that their user makes to their owner during that time.
func BenchmarkMany(b *testing.B) {
	for _, path := range paths {
		b.Run("over="+path.over, func(b *testing.B) {
			s := samples{}
			for b.Loop() {
				var seen messages
				a := processes(b, 2, path.listen, seen.configure)
				user, owner := bytesPerReference(b, a)
				s.add("user-B/ref", user)
				s.add("owner-B/ref", owner)
				before := seen.count.Load()
				d, err := Drop.Call(b.Context(), a, "worker1", agent.None{})
				require.NoError(b, err)
				s.add("drop-messages", float64(seen.count.Load()-before))
				s.add("release-s", d.Release.Seconds())
				s.add("drop-s", d.Gone.Seconds())
				s.addTimes("calls-", d.Calls)
			}
			s.report(b)
		})
	}
}

// BenchmarkManySharers measures how long a value exists after the last reference to it was released:
// one of worker0 to a value of worker1 that was passed to 64 workers, each of which has returned it.
func BenchmarkManySharers(b *testing.B) {
	group := workers(b, 2+sharers)
	a, ctx := group[0], b.Context()
	each := func(f func(i int, to agent.To) error) {
		var calls sync.WaitGroup
		errs := make([]error, sharers)
		for i := range sharers {
			calls.Go(func() { errs[i] = f(i, group[2+i].Self().To()) })
		}
		calls.Wait()
		require.Equal(b, make([]error, sharers), errs)
	}
	s := samples{}
	for b.Loop() {
		first := rref.Remote(ctx, a, "worker1", Identity, 1)
		returned := make([]*rref.Ref[int], sharers)
		begun := time.Now()
		each(func(i int, to agent.To) (err error) {
			returned[i], err = Keep.Call(ctx, a, to, first)
			return err
		})
		s.add("share-ms", time.Since(begun).Seconds()*1e3)
		each(func(_ int, to agent.To) error {
			_, err := Release.Call(ctx, a, to, agent.None{})
			return err
		})
		require.NoError(b, releaseAll(ctx, returned))
		begun = time.Now()
		require.NoError(b, first.Release(ctx))
		awaitNoValues(b, a)
		s.add("gone-ms", time.Since(begun).Seconds()*1e3)
	}
	s.report(b)
}
