package cudaipc

import (
	"bytes"
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/subprocess"
)

// memory returns the memory of b.
func memory(b device.Buffer) *Memory {
	m, _ := b.Memory()
	return m.(*Memory)
}

// Freed memory is used again for the same stream, which need not be idle, without a call of the
// driver.
func TestMemoryIsReusedInStreamOrder(t *testing.T) {
	f := newFixture(t, Options{})
	s := f.stream(f.zero)
	first := f.alloc(1000, s)
	release := f.hold(s)
	require.NoError(t, f.Sleep(s, 1))
	calls := f.simulator().Calls("cuMemAlloc_v2")
	p := memory(first).Ptr()
	memory(first).release()
	second := f.alloc(900, s)
	require.Equal(t, p, memory(second).Ptr())
	require.Equal(t, calls, f.simulator().Calls("cuMemAlloc_v2"))
	other := f.alloc(900, f.stream(f.zero))
	require.NotEqual(t, memory(second).segmentOf(), memory(other).segmentOf())
	release()
	require.Equal(t, MemoryStats{InUse: 2048, PeakInUse: 2048, Held: 2 * smallSegment, Segments: 2, Allocs: 3, Frees: 1}, f.stats(f.zero))
	require.Zero(t, f.stats(f.second()))
	runtime.KeepAlive(second)
	runtime.KeepAlive(other)
}

func (m *Memory) segmentOf() *segment { return m.block.segment }

// Blocks are split, and joined with their free neighbours in every order of freeing.
func TestBlocksAreSplitAndMerged(t *testing.T) {
	f := newFixture(t, Options{})
	s := f.stream(f.zero)
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {0, 2, 1}} {
		var m [3]*Memory
		for i := range m {
			m[i] = memory(f.alloc(blockAlign-i, s))
			require.Equal(t, m[0].Ptr()+driver.Ptr(i*blockAlign), m[i].Ptr())
		}
		for _, i := range order {
			m[i].release()
		}
		whole := memory(f.alloc(smallBlock, s))
		require.Equal(t, m[0].Ptr(), whole.Ptr())
		whole.release()
		require.Equal(t, 1, f.stats(f.zero).Segments)
		require.Zero(t, f.stats(f.zero).InUse)
	}

	// Blocks of three sizes are in segments of their own.
	large, medium, small := memory(f.alloc(12<<20-smallBlock, s)), memory(f.alloc(smallBlock+1, s)), memory(f.alloc(1, s))
	require.Equal(t, smallSegment, small.segmentOf().size)
	require.Equal(t, sharedSegment, medium.segmentOf().size)
	require.Equal(t, 12<<20, large.segmentOf().size)
	second := memory(f.alloc(2*smallBlock, s))
	require.Equal(t, medium.segmentOf(), second.segmentOf())
	require.Equal(t, medium.Ptr()+smallBlock+blockAlign, second.Ptr())
	require.NoError(t, f.Trim(f.zero))
	require.Equal(t, 3, f.stats(f.zero).Segments)
	large.release()
	require.NoError(t, f.Trim(f.zero))
	require.Equal(t, smallSegment+sharedSegment, f.stats(f.zero).Held)
	runtime.KeepAlive(small)
	runtime.KeepAlive(medium)
	runtime.KeepAlive(second)
}

// Memory that was used on another stream is free when the work on that stream is done.
func TestMemoryIsPendingAfterUseOnAnotherStream(t *testing.T) {
	f := newFixture(t, Options{})
	s, other := f.stream(f.zero), f.stream(f.zero)
	release := f.hold(other)
	require.NoError(t, f.Sleep(other, 1))
	b := f.alloc(100, s)
	m := memory(b)
	require.NoError(t, f.RecordStream(b, other))
	require.NoError(t, f.RecordStream(b, other))
	m.release()
	require.Equal(t, blockAlign, f.stats(f.zero).Pending)
	require.Zero(t, f.stats(f.zero).InUse)
	second := f.alloc(100, s)
	require.NotEqual(t, m.Ptr(), memory(second).Ptr())
	release()
	f.synchronize(other)
	third := f.alloc(100, s)
	require.Equal(t, m.Ptr(), memory(third).Ptr())
	require.Zero(t, f.stats(f.zero).Pending)
	runtime.KeepAlive(second)
	runtime.KeepAlive(third)
}

// If memory is exhausted, a stream takes over memory of another one, after the work of that.
func TestMemoryMovesBetweenStreams(t *testing.T) {
	f := newFixture(t, Options{MemoryLimit: smallSegment})
	a, b := f.stream(f.zero), f.stream(f.zero)
	f.set("CUSIM_DELAY_US", late)
	first := f.alloc(smallBlock, a)
	release := f.hold(a)
	f.write(first, pattern(1, smallBlock))
	p := memory(first).Ptr()
	memory(first).release()
	second := f.alloc(smallBlock, b)
	require.Equal(t, p, memory(second).Ptr())
	require.EqualValues(t, 1, f.stats(f.zero).Moved)
	f.write(second, pattern(2, smallBlock))
	release()
	require.True(t, bytes.Equal(pattern(2, smallBlock), f.read(second)))
	f.synchronize(a)
	require.True(t, bytes.Equal(pattern(2, smallBlock), f.read(second)))

	// It stays with its stream, and is not joined with memory of others.
	memory(second).release()
	second, third := f.alloc(smallBlock, b), f.alloc(smallBlock, b)
	memory(third).release()
	fourth := f.alloc(smallBlock, a)
	require.Equal(t, memory(third).Ptr(), memory(fourth).Ptr())
	for range 2 { // in both orders
		memory(fourth).release()
		memory(second).release()
		require.Len(t, f.gpus[0].memory.free[a.handle], 1)
		require.Len(t, f.gpus[0].memory.free[b.handle], 1)
		fourth, second = f.alloc(smallBlock, b), f.alloc(smallBlock, a)
	}
	require.EqualValues(t, 2, f.stats(f.zero).Moved)
}

// If no block that is kept for reuse is large enough, allocations fail without a wait for the device,
// until Trim has freed them.
func TestTrimForLargerBlocks(t *testing.T) {
	f := newFixture(t, Options{MemoryLimit: 40 << 20})
	s := f.stream(f.zero)
	memory(f.alloc(21<<20, s)).release()
	memory(f.alloc(12<<20, f.stream(f.zero))).release()
	kept := f.alloc(1, s)
	blocking := f.blocking()
	_, err := f.Alloc(f.zero, 30<<20, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.Equal(t, blocking, f.blocking())
	require.NoError(t, f.Trim(f.zero))
	b := f.alloc(30<<20, s)
	require.Equal(t, 32<<20, f.stats(f.zero).Held)
	memory(b).release()
	runtime.KeepAlive(kept)
}

func TestMemoryLimit(t *testing.T) {
	f := newFixture(t, Options{MemoryLimit: 3 * smallSegment})
	s := f.stream(f.zero)
	var kept []device.Buffer
	for range 6 {
		kept = append(kept, f.alloc(smallBlock, s))
	}
	_, err := f.Alloc(f.zero, 1, s)
	var memoryError *MemoryError
	require.ErrorAs(t, err, &memoryError)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.Equal(t, MemoryError{Device: f.zero, Size: 1, Stats: f.stats(f.zero), Limit: 3 * smallSegment}, *memoryError)
	require.EqualError(t, err, "cudaipc: cuda:0 has no memory for 1 bytes (in use 6291456, pending 0, held 6291456, limit 6291456)")
	_, err = f.Alloc(f.zero, int(^uint(0)>>1), s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	_, err = f.Alloc(f.second(), smallBlock, nil)
	require.NoError(t, err, "the limit is for each device")
	memory(kept[2]).release()
	_, err = f.Alloc(f.zero, 1, s)
	require.NoError(t, err)
	runtime.KeepAlive(kept)
}

func TestDeviceIsOutOfMemory(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	f := newFixtureWith(t, Options{}, map[string]string{"CUSIM_TOTAL_MEM": fmt.Sprint(64 << 20)})
	s := f.stream(f.zero)
	b := f.alloc(40<<20, s)
	_, err := f.Alloc(f.zero, 40<<20, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	memory(b).release()
	_, err = f.Alloc(f.zero, 60<<20, s)
	require.ErrorIs(t, err, ErrOutOfMemory, "freeing the 40 MiB that are kept would wait for the device")
	require.NoError(t, f.Trim(f.zero))
	b = f.alloc(60<<20, s)
	require.Equal(t, 60<<20, f.stats(f.zero).Held)
	runtime.KeepAlive(b)
}

// Memory that becomes unreachable is used again. A failed allocation starts the garbage collection
// that finds it.
func TestUnreachableMemoryIsReused(t *testing.T) {
	f := newFixture(t, Options{MemoryLimit: smallSegment})
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	s := f.stream(f.zero)
	f.alloc(smallBlock, s)
	f.alloc(smallBlock, s)
	for {
		b, err := f.Alloc(f.zero, smallBlock, s)
		if err == nil {
			require.GreaterOrEqual(t, f.stats(f.zero).Frees, uint64(1))
			memory(b).release()
			return
		}
		require.ErrorIs(t, err, ErrOutOfMemory)
		require.NoError(t, t.Context().Err())
		runtime.Gosched()
	}
}

// The memory of the driver does not grow with the number of allocations: 40,000 call it a few times.
func TestMemoryIsFlat(t *testing.T) {
	f := newFixture(t, Options{})
	var streams []*Stream
	for range 3 {
		streams = append(streams, f.stream(f.zero))
	}
	sizes := []int{1, 700, 5000, 100_000, smallBlock, 3 << 20}
	calls, events := f.simulator().Calls("cuMemAlloc_v2"), f.simulator().Calls("cuEventCreate")
	for i := range 10_000 {
		var live []*Memory
		for j := range 4 {
			b := f.alloc(sizes[(i+j)%6], streams[(i/7+j)%3])
			live = append(live, memory(b))
			if i%20 == 0 {
				require.NoError(t, f.RecordStream(b, streams[j%3]))
			}
		}
		for _, m := range live {
			m.release()
		}
		if i%20 == 0 {
			for _, s := range streams {
				f.synchronize(s)
			}
		}
	}
	// Which stream has work left when memory is needed depends on time. At worst each has segments of its own.
	require.LessOrEqual(t, f.stats(f.zero).Held, len(streams)*(sharedSegment+2*smallSegment))
	require.LessOrEqual(t, f.simulator().Calls("cuMemAlloc_v2")-calls, len(streams)*3)
	require.Less(t, f.simulator().Calls("cuEventCreate")-events, 100)
	require.Zero(t, f.stats(f.zero).InUse)
	require.EqualValues(t, 40_000, f.stats(f.zero).Frees)
}

// Memory of no bytes has no address, and can be copied.
func TestMemoryOfNoBytes(t *testing.T) {
	f := newFixture(t, Options{})
	b := f.alloc(0, f.stream(f.zero))
	require.Zero(t, memory(b).Ptr())
	require.NoError(t, f.Copy(b, device.Bytes(nil)))
	require.Zero(t, f.stats(f.zero))
}

// The pool of page-locked memory has blocks of powers of two, which are used again when their work is
// done.
func TestPinnedPool(t *testing.T) {
	f := newFixture(t, Options{})
	s := f.stream(f.zero)
	g := f.gpus[0]
	require.NoError(t, g.enter())
	defer g.leave()
	release := f.hold(s)
	require.NoError(t, f.Sleep(s, 1))
	first, err := g.pinned.take(leastPinned + 1)
	require.NoError(t, err)
	require.Len(t, first.data, 2*leastPinned)
	g.pinned.put(first, s.handle)
	second, err := g.pinned.take(2 * leastPinned)
	require.NoError(t, err)
	require.NotSame(t, first, second)
	release()
	f.synchronize(s)
	third, err := g.pinned.take(2*leastPinned - 1)
	require.NoError(t, err)
	require.Same(t, first, third)
	g.pinned.putIdle(third)
	fourth, err := g.pinned.take(2 * leastPinned)
	require.NoError(t, err)
	require.Same(t, first, fourth)
	small, err := g.pinned.take(0)
	require.NoError(t, err)
	require.Len(t, small.data, leastPinned)
	require.Equal(t, 3, f.simulator().Calls("cuMemHostAlloc")-f.hostAllocs)
	require.Len(t, g.events, 2, "of the synchronization, and of the block")
	freed := f.simulator().Calls("cuMemFreeHost")
	require.NoError(t, f.Close())
	require.Equal(t, 3, f.simulator().Calls("cuMemFreeHost")-freed)
	_, err = g.pinned.take(1)
	require.ErrorIs(t, err, ErrClosed)
}
