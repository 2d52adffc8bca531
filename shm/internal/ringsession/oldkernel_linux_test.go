package ringsession_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/subprocess"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ringsession"
)

// forbidReserve makes the system of this process refuse to reserve pages of mapped memory, as Linux
// before 5.14 does. The test must run in a process of its own.
func forbidReserve(t *testing.T) {
	t.Helper()
	for _, advice := range []uint32{unix.MADV_POPULATE_WRITE, unix.MADV_POPULATE_READ} {
		require.NoError(t, subprocess.DenySyscall(unix.SYS_MADVISE, unix.EINVAL, subprocess.Argument{Number: 2, Value: advice}))
	}
}

// resident returns the number of bytes for which the file of a segment has pages.
func resident(t *testing.T, s *segment.Segment) int {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(s.File().Fd()), &st))
	return int(st.Blocks) * 512
}

// On an old kernel a segment is created with the pages that its rings begin with.
func TestSegmentOnOldKernel(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	leakcheck.Check(t)
	firstRegions := map[ringsession.RingKind]int{
		ringsession.SmallRing: ringsession.SmallRegion,
		ringsession.LargeRing: ringsession.UnchargedRegion,
	}
	for kind, first := range firstRegions {
		s, err := ringsession.CreateLaterSegment(kind)
		require.NoError(t, err)
		require.Less(t, resident(t, s), 2*first, "only headers: other pages can be reserved later")
		require.NoError(t, s.Close())
	}
	forbidReserve(t)
	for kind, first := range firstRegions {
		s, err := ringsession.CreateLaterSegment(kind)
		require.NoError(t, err)
		require.GreaterOrEqual(t, resident(t, s), 2*first)
		require.Less(t, resident(t, s), 2*(first+ringsession.FirstRegion)+6*os.Getpagesize())
		require.NoError(t, s.Close())
	}
}

// On an old kernel streams work. Their rings begin with the last region that needs no budget and do
// not grow.
func TestStreamsOnOldKernel(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	forbidReserve(t)
	client, server := sessions(t, 6)
	out, in := open(t, client, server)
	for range 5 { // some are in the first segment, others in segments of their own
		other, otherIn := open(t, client, server)
		require.Equal(t, ringsession.SmallRegion, fill(t, other, 0, moreThanRing))
		drain(t, otherIn, 0, ringsession.SmallRegion)
	}
	for at := 0; at < 2*ringsession.ChargedTraffic; at += ringsession.UnchargedRegion {
		require.Equal(t, ringsession.UnchargedRegion, fill(t, out, at, moreThanRing))
		drain(t, in, at, ringsession.UnchargedRegion)
	}
	require.False(t, client.ShrinkScheduled())
}

// A writer on a newer kernel can grow the ring even if the reader's kernel is old.
func TestGrowthByPeerOnNewKernel(t *testing.T) {
	if !subprocess.InChild(t) {
		return
	}
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	at := passTraffic(t, out, in, 0)
	n := fill(t, out, at, moreThanRing)
	require.Equal(t, ringsession.UnchargedRegion+ringsession.ChargedRegion, n)
	forbidReserve(t)
	drain(t, in, at, n)
}
