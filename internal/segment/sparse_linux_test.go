package segment_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

// resident returns the number of bytes of a segment that have pages.
func resident(t *testing.T, s *segment.Segment) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(s.File().Fd()), &st))
	return st.Blocks * 512
}

// Only the requested parts of a sparse segment have pages.
func TestSparse(t *testing.T) {
	page := os.Getpagesize()
	size := 8 * page
	s, err := segment.CreateSparse(size, segment.Extent{Offset: 0, Length: 10}, segment.Extent{Offset: 4*page - 1, Length: 2})
	require.NoError(t, err)
	defer s.Close()
	require.Len(t, s.Bytes(), size)
	require.True(t, s.Sealed())
	require.EqualValues(t, 3*page, resident(t, s))

	require.NoError(t, segment.Reserve(s.Bytes()[6*page+1:7*page+1]))
	require.EqualValues(t, 5*page, resident(t, s), "both pages of which it is a part")
	require.NoError(t, segment.Reserve(nil))

	require.NoError(t, segment.ReserveForReading(s.Bytes()[page:page+1]))
	require.EqualValues(t, 6*page, resident(t, s))
	require.NoError(t, segment.Release(s.Bytes()[page:2*page]))

	s.Bytes()[0], s.Bytes()[6*page] = 1, 2
	require.NoError(t, segment.Release(s.Bytes()[1:7*page+1]))
	require.EqualValues(t, 2*page, resident(t, s), "the first and the last, which it has a part of")
	require.Equal(t, []byte{1, 0}, []byte{s.Bytes()[0], s.Bytes()[6*page]})
	require.NoError(t, segment.Release(s.Bytes()[1:page]))
	require.NoError(t, segment.Release(s.Bytes()[1:2]))
	require.NoError(t, segment.Release(nil))
}

// Pages that one end releases read as zero at the other end, without a fault.
func TestReleaseAffectsAllMappings(t *testing.T) {
	s := newTestSegment(t, segment.CreateSealed, 1<<20)
	peers, err := segment.Map(s.File(), 1<<20)
	require.NoError(t, err)
	defer peers.Close()
	s.Bytes()[70_000] = 7
	require.EqualValues(t, 7, peers.Bytes()[70_000])
	require.NoError(t, segment.Release(peers.Bytes()))
	require.Zero(t, s.Bytes()[70_000])
	require.NoError(t, segment.Reserve(s.Bytes()))
	require.EqualValues(t, 1<<20, resident(t, s))
}
