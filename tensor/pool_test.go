package tensor

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
)

const mib = 1 << 20

// mustAlloc allocates a storage of size bytes from a, sets every byte to b, and returns the
// storage. It fails the test if the allocation fails.
func mustAlloc(t testing.TB, a Allocator, size int, b byte) *Storage {
	t.Helper()
	s, err := a.Alloc(size)
	require.NoError(t, err)
	p, err := s.Bytes()
	require.NoError(t, err)
	require.Len(t, p, size)
	for i := range p {
		p[i] = b
	}
	runtime.KeepAlive(s)
	return s
}

func TestSizeClass(t *testing.T) {
	classes := map[int]bool{}
	for size := mib; size <= 4*mib; size += 4093 {
		class := sizeClass(size)
		require.GreaterOrEqual(t, class, size)
		require.LessOrEqual(t, class, size+size/4)
		require.Equal(t, class, sizeClass(class), "a class is its own")
		classes[class] = true
	}
	require.Len(t, classes, 9, "four for each doubling, and the first")
	require.Equal(t, maxAlloc, sizeClass(maxAlloc))
}

func TestPoolRecycles(t *testing.T) {
	p := NewPool(PoolOptions{})
	first := mustAlloc(t, p, mib+5, 1)
	memory := &first.host[0]
	require.Equal(t, PoolStats{InUse: mib + mib/4, Mapped: 1}, p.Stats())
	first.Release()
	require.Equal(t, PoolStats{Idle: mib + mib/4, Mapped: 1, Released: 1}, p.Stats())

	second := mustAlloc(t, p, mib+mib/4, 2)
	require.Same(t, memory, &second.host[0])
	other := mustAlloc(t, p, 2*mib, 3)
	require.Equal(t, PoolStats{InUse: 3*mib + mib/4, Mapped: 2, Reused: 1, Released: 1}, p.Stats())
	require.EqualValues(t, 2, second.host[mib], "the other storage lies elsewhere")
	runtime.KeepAlive(second)
	runtime.KeepAlive(other)
}

func TestPoolLeavesSmallStoragesToTheHeap(t *testing.T) {
	p := NewPool(PoolOptions{Limit: 1})
	for _, size := range []int{0, 1, mib - 1} {
		mustAlloc(t, p, size, 1).Release()
	}
	require.Zero(t, p.Stats())
	for _, size := range []int{-1, math.MaxInt} {
		_, err := p.Alloc(size)
		var typed *SizeError
		require.ErrorAs(t, err, &typed)
	}
}

func TestPoolAlignsHugePages(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has huge pages for anonymous memory")
	}
	p := NewPool(PoolOptions{})
	for _, size := range []int{2 * mib, 5*mib + 1} {
		s := mustAlloc(t, p, size, 1)
		require.Zero(t, uintptr(unsafe.Pointer(&s.host[0]))%(2*mib))
		runtime.KeepAlive(s)
	}
}

func TestPoolWithoutAddressSpace(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere the memory comes from the Go heap, whose end is the process's")
	}
	p := NewPool(PoolOptions{})
	_, err := p.Alloc(maxAlloc)
	var typed *SizeError
	require.ErrorAs(t, err, &typed)
	require.Error(t, errors.Unwrap(err))
	require.Zero(t, p.Stats().InUse)
}

func TestPoolLimit(t *testing.T) {
	p := NewPool(PoolOptions{Limit: 4 * mib})
	a, b := mustAlloc(t, p, 2*mib, 1), mustAlloc(t, p, mib, 2)
	_, err := p.Alloc(2 * mib)
	require.Equal(t, &LimitError{Size: 2 * mib, InUse: 3 * mib, Limit: 4 * mib}, err)
	require.Equal(t, 3*mib, p.Stats().InUse, "a refused request does not count")
	require.Equal(t, 1, p.Stats().Collections, "unreachable storages are looked for")

	b.Release()
	c := mustAlloc(t, p, 2*mib, 3) // returns b's memory to the system first
	require.Equal(t, 4*mib, p.Stats().InUse)
	require.Equal(t, mib, p.Stats().Trimmed)
	require.Zero(t, p.Stats().Idle)
	runtime.KeepAlive(a)
	runtime.KeepAlive(c)
}

func TestPoolIdleLimit(t *testing.T) {
	p := NewPool(PoolOptions{IdleLimit: 3 * mib})
	var all []*Storage
	for i := range 4 {
		all = append(all, mustAlloc(t, p, mib, byte(i)))
	}
	last := &all[3].host[0]
	for _, s := range all {
		s.Release()
	}
	require.Equal(t, 3*mib, p.Stats().Idle)
	require.Equal(t, mib, p.Stats().Trimmed)
	s := mustAlloc(t, p, mib, 9)
	require.Same(t, last, &s.host[0], "the memory used last comes first")
	p.Trim()
	require.Zero(t, p.Stats().Idle)
	require.Equal(t, 3*mib, p.Stats().Trimmed)
	runtime.KeepAlive(s)
}

func TestPoolIdleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(PoolOptions{IdleTime: time.Minute})
		a, b := mustAlloc(t, p, mib, 1), mustAlloc(t, p, 2*mib, 2)
		a.Release()
		time.Sleep(30 * time.Second)
		b.Release()
		time.Sleep(29 * time.Second)
		require.Equal(t, 3*mib, p.Stats().Idle)
		time.Sleep(2 * time.Second)
		require.Equal(t, 2*mib, p.Stats().Idle)
		time.Sleep(30 * time.Second)
		require.Zero(t, p.Stats().Idle)
		require.Equal(t, 3*mib, p.Stats().Trimmed)

		mustAlloc(t, p, mib, 1).Release()
		time.Sleep(61 * time.Second)
		require.Zero(t, p.Stats().Idle, "the clock starts again")
	})
}

func TestPoolStartsCollections(t *testing.T) {
	p := NewPool(PoolOptions{Growth: 4 * mib})
	var all []*Storage
	for range 3 {
		all = append(all, mustAlloc(t, p, mib, 1))
	}
	require.Zero(t, p.Stats().Collections)
	all = append(all, mustAlloc(t, p, mib, 1))
	require.Equal(t, 1, p.Stats().Collections)
	for range 3 { // below the next threshold of 8 MiB
		all = append(all, mustAlloc(t, p, mib, 1))
	}
	require.Equal(t, 1, p.Stats().Collections)
	for _, s := range all {
		s.Release()
	}
	require.Equal(t, 4*mib, p.collectAt, "memory that came back lowers the threshold")
}

// TestPoolCollectsGarbage checks that a pool starts garbage collections that find unreachable
// storages, so that these do not accumulate beyond its limit.
func TestPoolCollectsGarbage(t *testing.T) {
	p := NewPool(PoolOptions{Limit: 16 * mib, Growth: 4 * mib})
	for i := range 100 {
		s, err := p.AllocWait(t.Context(), mib)
		require.NoError(t, err)
		s.host[0] = byte(i)
	}
	stats := p.Stats()
	require.LessOrEqual(t, stats.InUse, 16*mib)
	require.GreaterOrEqual(t, stats.Released, 84)
	require.NotZero(t, stats.Collections)
}

func TestAllocWait(t *testing.T) {
	p := NewPool(PoolOptions{Limit: 2 * mib})
	_, err := p.AllocWait(t.Context(), 3*mib)
	var typed *LimitError
	require.ErrorAs(t, err, &typed, "what never fits does not wait")

	held := mustAlloc(t, p, 2*mib, 1)
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan error)
	go func() {
		_, err := p.AllocWait(ctx, mib)
		got <- err
	}()
	cancel()
	require.ErrorIs(t, <-got, context.Canceled)

	go func() {
		s, err := p.AllocWait(t.Context(), mib)
		if err == nil {
			s.Release()
		}
		got <- err
	}()
	held.Release()
	require.NoError(t, <-got)
}

func TestPoolFromManyGoroutines(t *testing.T) {
	p := NewPool(PoolOptions{Limit: 32 * mib, Growth: 8 * mib})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(g)))
			for range 50 {
				s, err := p.AllocWait(t.Context(), mib+rng.IntN(3*mib))
				if err != nil {
					t.Error(err)
					return
				}
				mark := byte(rng.IntN(256))
				for i := 0; i < len(s.host); i += 4096 {
					s.host[i] = mark
				}
				runtime.Gosched()
				for i := 0; i < len(s.host); i += 4096 {
					if s.host[i] != mark {
						t.Error("two storages share memory")
						return
					}
				}
				if rng.IntN(2) == 0 {
					s.Release()
				}
				runtime.KeepAlive(s)
			}
		})
	}
	wg.Wait()
	stats := p.Stats()
	require.Equal(t, 200, stats.Mapped+stats.Reused)
	require.NotZero(t, stats.Reused)
}

// waitCollected blocks until all memory of p has returned to it, by allocating and releasing as
// much as its limit. Waiting for memory starts the garbage collections that find unreachable
// storages.
func waitCollected(t *testing.T, p *Pool) {
	t.Helper()
	s, err := p.AllocWait(t.Context(), p.options.Limit)
	require.NoError(t, err)
	s.Release()
}

func TestWhatKeepsMemoryAlive(t *testing.T) {
	for _, c := range []struct {
		name string
		hold func(t *testing.T, x *Tensor) (holder any, bytes func() []byte)
	}{
		{"tensor", func(t *testing.T, x *Tensor) (any, func() []byte) {
			return x, func() []byte { return x.storage.host }
		}},
		{"view", func(t *testing.T, x *Tensor) (any, func() []byte) {
			v, err := x.Transpose(0, 1)
			require.NoError(t, err)
			return v, func() []byte { return v.storage.host }
		}},
		{"buffer", func(t *testing.T, x *Tensor) (any, func() []byte) {
			b, err := x.Buffer()
			require.NoError(t, err)
			return &b, func() []byte { p, _ := b.Contiguous(); return p }
		}},
		{"slice of a buffer", func(t *testing.T, x *Tensor) (any, func() []byte) {
			b, err := x.Buffer()
			require.NoError(t, err)
			b = b.Slice(16, mib).Slice(0, mib-16)
			return &b, func() []byte { p, _ := b.Contiguous(); return p }
		}},
		{"tensor of a buffer", func(t *testing.T, x *Tensor) (any, func() []byte) {
			b, err := x.Buffer()
			require.NoError(t, err)
			y, err := FromBuffer(b, F64, b.Len()/8)
			require.NoError(t, err)
			return y, func() []byte { return y.storage.host }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := NewPool(PoolOptions{Limit: 2 * mib})
			holder, bytes := func() (any, func() []byte) {
				x, err := Alloc(p, F32, 2, mib/4)
				require.NoError(t, err)
				require.NoError(t, Fill[float32](x, 1.5))
				return c.hold(t, x)
			}()
			for range 3 {
				runtime.GC()
			}
			_, err := p.Alloc(mib)
			require.Error(t, err, "the memory is in use")
			require.Equal(t, []byte{0, 0, 0xc0, 0x3f}, bytes()[:4])
			runtime.KeepAlive(holder)
			holder, bytes = nil, nil
			waitCollected(t, p)
			require.Equal(t, 1, p.Stats().Reused)
		})
	}
}

// TestStaleTensorDoesNotCrash checks that a tensor that is used after Release returns an error, or
// panics in builds with the tag "invariants", and that reading its memory does not crash even after
// the pool has returned that memory to the system.
func TestStaleTensorDoesNotCrash(t *testing.T) {
	p := NewPool(PoolOptions{})
	x, err := Alloc(p, U8, 2*mib)
	require.NoError(t, err)
	require.NoError(t, Fill[uint8](x, 7))
	values, err := Data[uint8](x)
	require.NoError(t, err)
	x.Release()
	if invariants.Enabled {
		require.EqualValues(t, 0xcc, values[mib])
	}
	p.Trim()
	for range 3 {
		runtime.GC()
	}
	if runtime.GOOS == "linux" {
		require.Zero(t, values[mib], "the pages are gone, the addresses are not")
	}
	requireReleased(t, func() error { _, err := At[uint8](x, 0); return err })
	requireReleased(t, func() error { _, err := x.Clone(); return err })
	runtime.KeepAlive(x)
}
