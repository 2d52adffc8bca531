package rref_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// TestMachine lets three or four workers create, share, fetch, release and forget references at
// random, in simulated time, while messages are lost, delayed, repeated and overtaken, pipes break,
// workers hear nothing from each other, and workers end and are replaced. It checks that an owner
// keeps a value as long as a worker has a confirmed reference that it has not fenced, that a fetch
// gives the value or a known error, and that no table has anything left some leases after all is
// released. More runs: go test ./rref -run TestMachine -rapid.checks 10000
func TestMachine(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		if race.Enabled && rapid.IntRange(0, 3).Draw(rt, "with the race detector") > 0 {
			return // each run takes long
		}
		var failed any
		synctest.Test(t, func(b *testing.T) {
			defer func() { failed = recover() }() // rapid fails by a panic, on another goroutine than this one
			runMachine(b.Context(), rt, t.Log)
		})
		if failed != nil {
			panic(failed)
		}
	})
}

func runMachine(ctx context.Context, t *rapid.T, log func(...any)) {
	n, static := rapid.IntRange(3, 4).Draw(t, "workers"), rapid.Bool().Draw(t, "static")
	m := startMachine(ctx, t, n, static, rapid.Uint64().Draw(t, "faults"))
	m.log = log
	defer m.close()
	m.weather.setRate(rapid.SampledFrom([]float64{0, 0.03, 0.1, 0.3}).Draw(t, "rate"))
	actions := map[string]func(*rapid.T){
		"": m.check, "create": m.create, "create and share": m.createAndShare, "own": m.own, "method": m.method, "share": m.share, "share again": m.share,
		"take": m.take, "take a new one": m.takeNew, "relay": m.relay, "fetch": m.fetch, "release": m.release,
		"forget": m.forget, "pass time": m.passTime, "cut": m.cut, "break": m.breakPipe, "faults": m.changeRate,
	}
	m.once = true
	if rapid.IntRange(0, 3).Draw(t, "with kills") == 0 {
		actions["kill"] = m.kill
		m.once = !static // a static group keeps the replies to a worker that has died
	}
	t.Repeat(actions)
	m.finish(t)
}

// live returns the members that are not closed.
func (m *machine) live() (live []*member) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.members {
		if !b.closed {
			live = append(live, b)
		}
	}
	return live
}

// pick returns one of the members that are not closed.
func (m *machine) pick(t *rapid.T, label string) *member {
	return rapid.SampledFrom(m.live()).Draw(t, label)
}

// pickName returns the name of one of the members.
func (m *machine) pickName(t *rapid.T, label string) string {
	return fmt.Sprint("worker", rapid.IntRange(0, len(m.members)-1).Draw(t, label))
}

// pickClaims returns up to n references of one member, at least one.
func (m *machine) pickClaims(t *rapid.T, n int) (*member, []*claim) {
	var with []*member
	for _, b := range m.live() {
		if len(b.claimed()) > 0 {
			with = append(with, b)
		}
	}
	if len(with) == 0 {
		t.Skip("no references")
	}
	b := rapid.SampledFrom(with).Draw(t, "user")
	all := b.claimed()
	picked := make([]*claim, min(rapid.IntRange(1, n).Draw(t, "references"), len(all)))
	for i := range picked { // different ones: a pointer that is sent twice is one reference
		n := rapid.IntRange(i, len(all)-1).Draw(t, "reference")
		all[i], all[n] = all[n], all[i]
		picked[i] = all[i]
	}
	return b, picked
}

func (b *member) claimed() []*claim {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.claims)
}

// newValue returns a value that no other creation has, or a negative one, whose creation fails, and
// how long that takes.
func (m *machine) newValue(t *rapid.T) makeArgs {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values++
	args := makeArgs{Value: m.values, Delay: time.Duration(rapid.SampledFrom([]int{0, 0, 0, 1, 20, 200}).Draw(t, "delay")) * machineLease / 100}
	if rapid.IntRange(0, 9).Draw(t, "makes a value") == 9 {
		args.Value = -1
	}
	return args
}

// options returns the options of a call.
func (m *machine) options(t *rapid.T) (opts []agent.CallOption) {
	if percent := rapid.SampledFrom([]int{0, 0, 1, 30, 150}).Draw(t, "timeout"); percent > 0 {
		opts = append(opts, agent.WithTimeout(time.Duration(percent)*machineLease/100))
	}
	if rapid.IntRange(0, 3).Draw(t, "retries") == 0 {
		opts = append(opts, agent.WithRetry(agent.Retry{Max: 2, Delay: machineLease / 10}))
	}
	return opts
}

// begin runs f on a goroutine of its own, with a context that may be cancelled after a while.
func (m *machine) begin(t *rapid.T, name string, f func(context.Context)) {
	ctx, cancel := context.WithCancel(m.ctx)
	if percent := rapid.SampledFrom([]int{0, 0, 0, 0, 5, 50}).Draw(t, "cancelled after"); percent > 0 {
		stop := time.AfterFunc(time.Duration(percent)*machineLease/100, cancel)
		context.AfterFunc(ctx, func() { stop.Stop() })
	}
	m.mu.Lock()
	m.ops++
	op := m.ops
	m.pending[op] = name
	m.mu.Unlock()
	go func() {
		defer cancel()
		f(ctx)
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.pending, op)
	}()
}

func (m *machine) create(t *rapid.T) {
	b, to, args, born := m.pick(t, "creator"), m.pickName(t, "owner"), m.newValue(t), time.Now()
	b.claim(rref.Remote(m.ctx, b.a, agent.To(to), makeValue, args, m.options(t)...), args.Value, born)
}

// createAndShare shares a reference that is not confirmed yet, and may release it at once.
func (m *machine) createAndShare(t *rapid.T) {
	b, owner, to, args, born := m.pick(t, "creator"), m.pickName(t, "owner"), m.pickName(t, "receiver"), m.newValue(t), time.Now()
	f := rref.Remote(m.ctx, b.a, agent.To(owner), makeValue, args, m.options(t)...)
	opts, releases := m.options(t), rapid.Bool().Draw(t, "releases")
	m.begin(t, "share a new one", func(ctx context.Context) {
		g := keepAll.Go(ctx, b.a, agent.To(to), map[string][]sharedRef{"new": {{f, args.Value, born}}}, opts...)
		if releases {
			_ = f.Release(ctx)
		} else {
			b.claim(f, args.Value, born)
		}
		if _, err := g.Wait(ctx); err != nil && !isKnown(err) {
			m.failf("share a new one: %v", err)
		}
	})
}

func (m *machine) own(t *rapid.T) {
	b, args, born := m.pick(t, "owner"), m.newValue(t), time.Now()
	b.claim(rref.Own(b.a, max(args.Value, 0)), max(args.Value, 0), born)
}

func (m *machine) method(t *rapid.T) {
	b, claims := m.pickClaims(t, 1)
	c, opts, born := claims[0], m.options(t), time.Now()
	n := max(m.newValue(t).Value, 1) * derived
	want := c.want + n
	if c.want < 0 {
		want = derivedFailure
	}
	if rapid.Bool().Draw(t, "keeps the result") {
		b.claim(addTo.Remote(m.ctx, c.f, n, opts...), want, born)
		return
	}
	m.begin(t, "method", func(ctx context.Context) {
		before := c.isConfirmed() && m.isSafe(c)
		v, err := addTo.Call(ctx, c.f, n, opts...)
		b.judge(c, "method", v, want, err, before)
	})
}

// share sends references to a worker, which keeps them or fetches their values.
func (m *machine) share(t *rapid.T) {
	b, claims := m.pickClaims(t, 3)
	to, opts, keeps, born := m.pickName(t, "receiver"), m.options(t), rapid.Bool().Draw(t, "keeps"), time.Now()
	args := map[string][]sharedRef{}
	for i, c := range claims {
		key := fmt.Sprint(i % 2)
		args[key] = append(args[key], sharedRef{c.f, c.want, born})
	}
	m.begin(t, "share", func(ctx context.Context) {
		var err error
		if keeps {
			_, err = keepAll.Call(ctx, b.a, agent.To(to), args, opts...)
		} else {
			_, err = fetchAll.Call(ctx, b.a, agent.To(to), args, opts...)
		}
		if err != nil && !isKnown(err) {
			m.failf("share: %v", err)
		}
	})
}

// receive adds the reference in p, a result, to those of b.
func (b *member) receive(op string, p sharedRef, err error, born time.Time) {
	switch {
	case err == nil:
		b.claim(p.Ref, p.Want, born)
	case !isKnown(err):
		b.failf("%s: %v", op, err)
	}
}

// take asks a worker for one of its references.
func (m *machine) take(t *rapid.T) {
	b, to, opts, n, born := m.pick(t, "receiver"), m.pickName(t, "sender"), m.options(t), rapid.Uint64Range(0, 9).Draw(t, "which"), time.Now()
	fn := take
	if m.once && rapid.Bool().Draw(t, "once") {
		fn = takeOnce
		if rapid.Bool().Draw(t, "with a key") {
			opts = append(opts, agent.WithIdempotencyKey(fmt.Sprint("take", n%3)))
		}
	}
	m.begin(t, "take", func(ctx context.Context) {
		p, err := fn.Call(ctx, b.a, agent.To(to), n, opts...)
		b.receive("take", p, err, born)
	})
}

// takeNew has a worker create a value on another one, and return the reference.
func (m *machine) takeNew(t *rapid.T) {
	b, to, opts, born := m.pick(t, "receiver"), m.pickName(t, "creator"), m.options(t), time.Now()
	args, fn := makeOnArgs{m.pickName(t, "owner"), m.newValue(t)}, makeAway
	if m.once && rapid.Bool().Draw(t, "once") {
		fn = makeOnce
		opts = append(opts, agent.WithIdempotencyKey(fmt.Sprint("make", rapid.IntRange(0, 3).Draw(t, "key"))))
	}
	m.begin(t, "take a new one", func(ctx context.Context) {
		p, err := fn.Call(ctx, b.a, agent.To(to), args, opts...)
		b.receive("take a new one", p, err, born)
	})
}

func (m *machine) relay(t *rapid.T) {
	b, claims := m.pickClaims(t, 1)
	var path []string
	for range rapid.IntRange(0, 4).Draw(t, "path") {
		path = append(path, m.pickName(t, "next"))
	}
	c, to, opts, born := claims[0], m.pickName(t, "receiver"), m.options(t), time.Now()
	m.begin(t, "relay", func(ctx context.Context) {
		v, err := relay.Call(ctx, b.a, agent.To(to), relayArgs{path, sharedRef{c.f, c.want, born}}, opts...)
		if err == nil && v != c.want || err != nil && !isKnown(err) {
			m.failf("relay of %v by %v and %v: %d, want %d, %v", c.f, to, path, v, c.want, err)
		}
	})
}

func (m *machine) fetch(t *rapid.T) {
	b, claims := m.pickClaims(t, 1)
	opts := m.options(t)
	m.begin(t, "fetch", func(ctx context.Context) { _, _ = b.fetch(ctx, claims[0], opts...) })
}

func (m *machine) release(t *rapid.T) {
	b, claims := m.pickClaims(t, 3)
	for _, c := range claims {
		if b.unclaim(c) {
			require.NoError(t, c.f.Release(m.ctx))
		}
	}
}

// forget leaves references to the garbage collector.
func (m *machine) forget(t *rapid.T) {
	b, claims := m.pickClaims(t, 2)
	for _, c := range claims {
		b.unclaim(c)
	}
}

func (m *machine) passTime(t *rapid.T) {
	if percent := rapid.SampledFrom([]int{0, 1, 10, 50, 120, 300}).Draw(t, "time"); percent > 0 {
		sleep(time.Duration(percent) * machineLease / 100)
	}
	synctest.Wait()
}

func (m *machine) cut(t *rapid.T) {
	percent := rapid.SampledFrom([]int{5, 60, 110, 300}).Draw(t, "time")
	m.weather.cut(m.pickName(t, "one"), m.pickName(t, "other"), time.Duration(percent)*machineLease/100)
}

// breakPipe breaks a connection. The workers open another one.
func (m *machine) breakPipe(t *rapid.T) {
	if links := m.network.Links(); len(links) > 0 {
		links[len(links)-1-rapid.IntRange(0, min(len(links), 12)-1).Draw(t, "link")].Cut()
	}
}

func (m *machine) changeRate(t *rapid.T) {
	m.weather.setRate(rapid.SampledFrom([]float64{0, 0.02, 0.1, 0.5}).Draw(t, "rate"))
}

// kill closes a worker without Shutdown, but not the last two. In a dynamic group another incarnation
// may take its place.
func (m *machine) kill(t *rapid.T) {
	if len(m.live()) < 3 {
		t.Skip("few workers are left")
	}
	b := m.pick(t, "killed")
	m.mu.Lock()
	b.closed = true
	m.mu.Unlock()
	_ = b.a.Close()
	if !m.static && rapid.Bool().Draw(t, "replaced") {
		require.NoError(t, m.join(slices.Index(m.members, b)))
	}
}
