package bench

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPatternFindsDamage(t *testing.T) {
	for _, size := range []int{0, 1, 7, 8, 9, 64, 1001} {
		p := make([]byte, size)
		generator(patternWord).fill(p, 5)
		require.Equal(t, -1, generator(patternWord).difference(p, 5), "size %d", size)
		for at := range p {
			p[at] ^= 0x10
			require.Equal(t, at&^7, generator(patternWord).difference(p, 5), "size %d, byte %d", size, at)
			p[at] ^= 0x10
		}
		if size > 0 {
			require.GreaterOrEqual(t, generator(patternWord).difference(p, 6), 0, "another message of size %d", size)
		}
	}
}

func TestPatternDiffersBetweenPositions(t *testing.T) {
	seen := map[uint64]bool{}
	for number := range uint64(100) {
		for index := range uint64(100) {
			w := patternWord(number, index)
			require.False(t, seen[w])
			seen[w] = true
		}
	}
}

// TestMemoryPoolReuse tests that a pool gives out an arena to one user at a time, and that an arena
// can be resized to other sizes and holds the contents of its messages.
func TestMemoryPoolReuse(t *testing.T) {
	pool := memoryPool{fresh: func() (memory, error) { return &arena{buffers: BuffersDefault}, nil }}
	take := func() memory {
		m, err := pool.get()
		require.NoError(t, err)
		return m
	}
	a := take()
	require.NoError(t, a.resize(2, 100))
	require.NotSame(t, a, take(), "an arena is lent once")
	pool.put(a)
	again := take()
	require.Same(t, a, again)
	for _, size := range []int{3 << 20, 8, 5 << 20} {
		require.NoError(t, again.resize(4, size))
		require.NoError(t, again.fill(4, 1))
		require.NoError(t, again.check(4, 1))
	}
}

func TestArenaSlots(t *testing.T) {
	for _, buffers := range AllBuffers() {
		t.Run(buffers, func(t *testing.T) { testArenaSlots(t, buffers) })
	}
}

func testArenaSlots(t *testing.T, buffers string) {
	for _, size := range []int{0, 1, 64, 65, 3 << 20} {
		a := arena{buffers: buffers}
		require.NoError(t, a.resize(3, size))
		require.NoError(t, a.fill(3, 10))
		require.NoError(t, a.check(3, 10), "slots do not overlap")
		require.Len(t, a.slot(2), size)
		if size == 0 {
			continue
		}
		require.ErrorIs(t, a.check(3, 9), ErrCorrupt)
		a.slot(1)[size-1] ^= 1
		require.ErrorContains(t, a.check(3, 10), "message 11 differs")
		a.clear(3)
		require.ErrorIs(t, a.check(1, 10), ErrCorrupt, "old bytes are not accepted")
	}
}
