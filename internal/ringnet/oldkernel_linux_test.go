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
	for _, advice := range []uint32{unix.MADV_POPULATE_WRITE, unix.MADV_POPULATE_READ} {
		require.NoError(t, alone.Forbid(unix.SYS_MADVISE, unix.EINVAL, alone.Argument{Number: 2, Value: advice}))
	}
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
	for kind, begin := range map[ringnet.RingKind]int{ringnet.SmallRing: ringnet.SmallRegion, ringnet.LargeRing: ringnet.UnpaidRegion} {
		s, err := ringnet.Created(1, kind)
		require.NoError(t, err)
		require.Less(t, resident(t, s), 2*begin, "only headers: pages can be set aside later")
		require.NoError(t, s.Close())
	}
	oldKernel(t)
	for kind, begin := range map[ringnet.RingKind]int{ringnet.SmallRing: ringnet.SmallRegion, ringnet.LargeRing: ringnet.UnpaidRegion} {
		s, err := ringnet.Created(1, kind)
		require.NoError(t, err)
		require.GreaterOrEqual(t, resident(t, s), 2*begin)
		require.Less(t, resident(t, s), 2*(begin+ringnet.FirstRegion)+6*os.Getpagesize())
		require.NoError(t, s.Close())
	}
}

// And streams work, but for rings that do not grow: they begin with what others have
// without the budget.
func TestStreamsOfAnOldKernel(t *testing.T) {
	if !alone.Here(t) {
		return
	}
	oldKernel(t)
	client, server := sessions(t, 6)
	out, in := open(t, client, server)
	for range 5 { // in the same segment, and in some of their own
		other, otherIn := open(t, client, server)
		require.Equal(t, ringnet.SmallRegion, fill(t, other, 0, most))
		drain(t, otherIn, 0, ringnet.SmallRegion)
	}
	for at := 0; at < 2*ringnet.MuchTraffic; at += ringnet.UnpaidRegion {
		require.Equal(t, ringnet.UnpaidRegion, fill(t, out, at, most))
		drain(t, in, at, ringnet.UnpaidRegion)
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
	n := fill(t, out, at, most)
	require.Equal(t, ringnet.UnpaidRegion+ringnet.LargeRegion, n)
	oldKernel(t)
	drain(t, in, at, n)
}
