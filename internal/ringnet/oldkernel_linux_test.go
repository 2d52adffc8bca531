package ringnet_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/alone"
	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/ringnet"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

// oldKernel makes the system of this process one that cannot set pages aside once
// memory is mapped, as Linux before 5.14.
func oldKernel(t *testing.T) {
	t.Helper()
	require.NoError(t, alone.Forbid(unix.SYS_MADVISE, unix.EINVAL, alone.Argument{Number: 2, Value: unix.MADV_POPULATE_WRITE}))
}

// resident is how many bytes the file of a segment has pages for.
func resident(t *testing.T, s *segment.Segment) int {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(s.File().Fd()), &st))
	return int(st.Blocks) * 512
}

// There a segment has from the start what its rings begin with.
func TestSegmentOfAnOldKernel(t *testing.T) {
	if !alone.Here(t) {
		return
	}
	leakcheck.Check(t)
	for ring, begin := range map[int]int{ringnet.SmallRing: ringnet.SmallRing, ringnet.LargeRing: ringnet.StartRing} {
		s, err := ringnet.Created(1, ring)
		require.NoError(t, err)
		require.Less(t, resident(t, s), 2*begin, "only headers: pages can be set aside later")
		require.NoError(t, s.Close())
	}
	oldKernel(t)
	for ring, begin := range map[int]int{ringnet.SmallRing: ringnet.SmallRing, ringnet.LargeRing: ringnet.StartRing} {
		s, err := ringnet.Created(1, ring)
		require.NoError(t, err)
		require.GreaterOrEqual(t, resident(t, s), 2*begin)
		require.Less(t, resident(t, s), 2*begin+4*os.Getpagesize())
		require.NoError(t, s.Close())
	}
}

// And streams work, but for rings that do not grow.
func TestStreamsOfAnOldKernel(t *testing.T) {
	if !alone.Here(t) {
		return
	}
	oldKernel(t)
	client, server := sessions(t, 6)
	out, in := open(t, client, server)
	for range 5 { // in the same segment, and in some of their own
		other, otherIn := open(t, client, server)
		drain(t, otherIn, 0, fill(t, other, 0, most))
	}
	at := pass(t, out, in, 0)
	for range 3 {
		require.Equal(t, ringnet.StartRing, fill(t, out, at, most))
		drain(t, in, at, ringnet.StartRing)
		at += ringnet.StartRing
	}
	require.False(t, client.Reducing())
}

// A peer that can may make the ring grow to which it writes.
func TestGrowthForAnOldKernel(t *testing.T) {
	if !alone.Here(t) {
		return
	}
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	at := pass(t, out, in, 0)
	require.Equal(t, ringnet.StartRing, fill(t, out, at, most))
	drain(t, in, at, ringnet.StartRing)
	at += ringnet.StartRing
	n := fill(t, out, at, most)
	require.Equal(t, ringnet.LargeRing, n)
	oldKernel(t)
	drain(t, in, at, n)
}
