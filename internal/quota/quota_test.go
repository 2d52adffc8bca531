package quota

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// evictions collects the names of accounts in the order of their eviction.
type evictions struct {
	mu    sync.Mutex
	names []string
}

func (e *evictions) open(p *Pool, name string) *Account {
	return p.Open(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.names = append(e.names, name)
	})
}

func (e *evictions) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.names...)
}

// charge calls a.Charge(n) on a new goroutine, waits until that has returned or is blocked, and
// returns a channel that receives its result.
func charge(a *Account, n int) <-chan bool {
	done := make(chan bool, 1)
	go func() { done <- a.Charge(n) }()
	synctest.Wait()
	return done
}

func TestTheLargestIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e evictions
		p := New(100)
		oldest, largest, newest := e.open(p, "oldest"), e.open(p, "largest"), e.open(p, "newest")
		require.True(t, oldest.Charge(30))
		require.True(t, largest.Charge(60))
		require.True(t, newest.Charge(10))

		waiting := charge(newest, 5)
		require.Equal(t, []string{"largest"}, e.all())
		require.Empty(t, waiting, "its memory is in use until it is closed")
		require.False(t, largest.Charge(1))
		largest.Close()
		require.True(t, <-waiting)
		used, evicted := p.Used()
		require.Equal(t, 45, used)
		require.EqualValues(t, 1, evicted)
		require.False(t, largest.Charge(1), "an evicted account stays so")
	})
}

func TestTheOneThatChargesMayBeTheLargest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e evictions
		p := New(100)
		small, greedy := e.open(p, "small"), e.open(p, "greedy")
		require.True(t, small.Charge(40))
		require.True(t, greedy.Charge(50))
		require.False(t, greedy.Charge(20))
		synctest.Wait()
		require.Equal(t, []string{"greedy"}, e.all())
		require.False(t, small.Charge(1000), "more than there is")
		synctest.Wait()
		require.Equal(t, []string{"greedy", "small"}, e.all())
	})
}

func TestOfEqualsTheNewestIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e evictions
		p := New(100)
		a, b := e.open(p, "a"), e.open(p, "b")
		require.True(t, a.Charge(50))
		require.True(t, b.Charge(50))
		c := e.open(p, "c")
		waiting := charge(c, 1)
		require.Equal(t, []string{"b"}, e.all())
		b.Close()
		require.True(t, <-waiting)
	})
}

// No more accounts are evicted than the waiting charges need, the largest first, even while the
// evicted ones are not closed yet. The charges succeed once they are.
func TestNoMoreThanNeededAreEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e evictions
		p := New(100)
		large := []*Account{e.open(p, "0"), e.open(p, "1"), e.open(p, "2")}
		for i, a := range large {
			require.True(t, a.Charge(32-i))
		}
		var waiting []<-chan bool
		for range 6 {
			waiting = append(waiting, charge(e.open(p, "small"), 10))
		}
		require.Equal(t, []string{"0", "1"}, e.all())
		large[0].Close()
		synctest.Wait()
		large[1].Close()
		for _, w := range waiting {
			require.True(t, <-w)
		}
		require.Equal(t, []string{"0", "1"}, e.all())
	})
}

func TestAddCountsAtOnceAndEvicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e evictions
		p := New(100)
		a, b := e.open(p, "a"), e.open(p, "b")
		a.Add(90)
		b.Add(20)
		synctest.Wait()
		require.Equal(t, []string{"a"}, e.all())
		used, _ := p.Used()
		require.Equal(t, 110, used)
		a.Add(5)
		a.Release(10)
		a.Close()
		used, _ = p.Used()
		require.Equal(t, 20, used)
		require.True(t, b.TryCharge(80))
		require.False(t, b.TryCharge(1))
		b.Close()
		used, _ = p.Used()
		require.Zero(t, used)
	})
}

// After Close, the bytes of an account that was not evicted are not counted: they are free for
// others, and its charges always succeed. OnEvict replaces the function until the account is
// evicted.
func TestCloseEndsCounting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e evictions
		p := New(100)
		a, b := e.open(p, "a"), e.open(p, "b")
		require.True(t, a.Charge(60))
		require.True(t, b.Charge(40))
		a.Close()
		require.True(t, a.Charge(1000))
		a.Add(1000)
		a.Release(500)
		a.Close()
		used, _ := p.Used()
		require.Equal(t, 40, used)
		require.True(t, b.OnEvict(func() {}))
		require.False(t, b.Charge(61))
		require.False(t, b.OnEvict(func() {}))
		b.Close()
		b.Close()
		used, _ = p.Used()
		require.Zero(t, used)
		synctest.Wait()
		require.Empty(t, e.all(), "OnEvict has replaced it")
	})
}

// A charge that waits succeeds, without charging bytes, when its account is closed.
func TestCloseWhileAChargeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e evictions
		p := New(100)
		a, b := e.open(p, "a"), e.open(p, "b")
		require.True(t, a.Charge(90))
		waiting := charge(b, 20)
		require.Empty(t, waiting)
		b.Close()
		require.True(t, <-waiting)
		a.Close()
		used, _ := p.Used()
		require.Zero(t, used)
	})
}

func TestNilCountsNothing(t *testing.T) {
	p := New(0)
	require.Nil(t, p)
	a := p.Open(func() { t.Error("evicted") })
	require.Nil(t, a)
	require.True(t, a.Charge(1<<40))
	require.True(t, a.TryCharge(1<<40))
	require.True(t, a.OnEvict(nil))
	a.Add(1)
	a.Release(1)
	a.Close()
	used, evicted := p.Used()
	require.Zero(t, used)
	require.Zero(t, evicted)
}

// With random peers that charge, release and close concurrently, the allocated bytes stay within
// the pool, every charge returns, and in the end no bytes are charged.
func TestPoolProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.IntRange(1, 200).Draw(rt, "size")
		peers := rapid.IntRange(1, 12).Draw(rt, "peers")
		seed := rapid.Uint64().Draw(rt, "seed")
		p := New(size)
		var live atomic.Int64 // bytes that peers have allocated
		var peersDone sync.WaitGroup
		for i := range peers {
			peersDone.Go(func() { playPeer(rt, p, rand.New(rand.NewPCG(seed, uint64(i))), size, &live) })
		}
		peersDone.Wait()
		used, _ := p.Used()
		require.Zero(rt, used)
		require.Empty(rt, p.waiting)
		require.Zero(rt, p.wanted)
		require.Zero(rt, p.evictedBytes)
	})
}

func playPeer(rt *rapid.T, p *Pool, r *rand.Rand, size int, live *atomic.Int64) {
	evicted := make(chan struct{})
	a := p.Open(func() { close(evicted) })
	held := 0
	for range 50 {
		n := r.IntN(size/2 + 1)
		switch {
		case r.IntN(3) == 0 && held > 0:
			n = 1 + r.IntN(held)
			held -= n
			live.Add(int64(-n))
			a.Release(n)
		case a.Charge(n):
			held += n
			if live.Add(int64(n)) > int64(size) {
				rt.Errorf("more than %d bytes are allocated", size)
			}
		default:
			<-evicted
			live.Add(int64(-held))
			a.Close()
			return
		}
	}
	live.Add(int64(-held))
	a.Close()
}

func BenchmarkCharge(b *testing.B) {
	a := New(1 << 20).Open(func() {})
	b.ReportAllocs()
	for b.Loop() {
		a.Charge(1 << 10)
		a.Release(1 << 10)
	}
}
