package ringsession_test

import (
	"bytes"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/shm/internal/ringsession"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// fill writes at most limit bytes, as far as there is space, and returns how many. Their values are
// those of numbered, and the first one has the number from.
func fill(t *testing.T, s transport.Stream, from, limit int) (n int) {
	t.Helper()
	n, err := s.(transport.Poller).TryWrite(numbered(from, limit))
	require.NoError(t, err)
	return n
}

// numbered returns n bytes, whose numbers begin with from. The value of a byte is its number modulo
// 251, so that bytes at a distance of a power of two differ. All calls share one array, which the
// caller must not change.
func numbered(from, n int) []byte { return numbers()[from%251:][:n] }

// numbers makes the bytes for numbered once: under the race detector that takes long.
var numbers = sync.OnceValue(func() []byte {
	p := make([]byte, 251)
	for i := range p {
		p[i] = byte(i)
	}
	return bytes.Repeat(p, (20<<20)/len(p)+2)
})

// moreThanRing is more than any ring holds, in bytes.
const moreThanRing = 4 << 20

// drain reads n bytes from s and checks that they are those of numbered, beginning with the number
// from.
func drain(t *testing.T, s transport.Stream, from, n int) {
	t.Helper()
	got := make([]byte, n)
	_, err := io.ReadFull(s, got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(numbered(from, n), got))
}

// growUncharged makes an empty ring in its first region grow as far as it does without the budget, with large
// writes, and empties it. at is the number of the first byte; it returns that of the next one.
func growUncharged(t *testing.T, out, in transport.Stream, at int) int {
	t.Helper()
	require.Equal(t, ringsession.UnchargedBytes, fill(t, out, at, moreThanRing))
	drain(t, in, at, ringsession.UnchargedBytes)
	return at + ringsession.UnchargedBytes
}

// passTraffic passes so many bytes through an empty ring in its first region that it grows to its last
// region when it is full next. at is the number of the first byte; it returns that of the next one.
func passTraffic(t *testing.T, out, in transport.Stream, at int) int {
	t.Helper()
	end := at + ringsession.ChargedTraffic - ringsession.UnchargedRegion
	for at = growUncharged(t, out, in, at); at < end; at += ringsession.UnchargedRegion {
		require.Equal(t, ringsession.UnchargedRegion, fill(t, out, at, ringsession.UnchargedRegion))
		drain(t, in, at, ringsession.UnchargedRegion)
	}
	return at
}

// grow makes an empty ring in its first region grow to its last one, and empties it. at is the number of the
// first byte; it returns that of the next one.
func grow(t *testing.T, out, in transport.Stream, at int) int {
	t.Helper()
	at = passTraffic(t, out, in, at)
	n := fill(t, out, at, moreThanRing)
	require.Equal(t, ringsession.UnchargedRegion+ringsession.ChargedRegion, n)
	drain(t, in, at, n)
	return at + n
}

// Small messages, however many, do not make a ring grow.
func TestSmallMessagesLeaveARingSmall(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	const size = 100
	for at := 0; at < 2*ringsession.ChargedRegion; at += size {
		require.Equal(t, size, fill(t, out, at, size))
		drain(t, in, at, size)
	}
	require.Zero(t, client.FirstLevel().Load())
	require.False(t, client.ShrinkScheduled())
	untouched := client.GrowthBytes()
	require.Equal(t, make([]byte, len(untouched)), untouched)
}

// A full ring grows after traffic of several times its size.
func TestRingGrowsAfterTraffic(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	sizes, after := ringsession.Regions()
	at := 0
	for level, size := range sizes[:len(sizes)-1] {
		for at+size < after[level+1] {
			require.Equal(t, size, fill(t, out, at, size+1), "it is full")
			drain(t, in, at, size)
			at += size
		}
		require.EqualValues(t, level, client.FirstLevel().Load())
		require.Equal(t, size+1, fill(t, out, at, size+1))
		drain(t, in, at, size+1)
		at += size + 1
		require.EqualValues(t, level+1, client.FirstLevel().Load())
	}
}

// No bytes are lost when a ring grows. After that the writer does not use the space of the smaller
// region, even when the reader has read it.
func TestGrowthKeepsBytes(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	at := passTraffic(t, out, in, 0)
	n := ringsession.UnchargedRegion + ringsession.ChargedRegion
	require.Equal(t, n, fill(t, out, at, moreThanRing))
	for _, small := range []int{1, ringsession.UnchargedRegion - 1} {
		require.Zero(t, fill(t, out, at+n, moreThanRing))
		drain(t, in, at, small)
		at, n = at+small, n-small
	}
	for range 3 {
		require.Zero(t, fill(t, out, at+n, moreThanRing))
		drain(t, in, at, 70_000)
		at += 70_000
		require.Equal(t, 70_000, fill(t, out, at+n-70_000, moreThanRing))
	}
	drain(t, in, at, n)
	require.Equal(t, ringsession.ChargedRegion, fill(t, out, at+n, moreThanRing))
	drain(t, in, at+n, ringsession.ChargedRegion)
	require.True(t, client.ShrinkScheduled())
	require.False(t, server.ShrinkScheduled(), "the server has written nothing")
}

// A writer grows the ring before it blocks, as long as that needs no budget.
func TestWriterGrowsBeforeItBlocks(t *testing.T) {
	for name, write := range map[string]func(transport.Stream, []byte) (int, error){
		"Write": transport.Stream.Write,
		"TryWrite and PollWritable": func(out transport.Stream, p []byte) (n int, err error) {
			for n < len(p) && err == nil && out.(transport.WritePoller).PollWritable() {
				var k int
				k, err = out.(transport.Poller).TryWrite(p[n:])
				n += k
			}
			return n, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := sessions(t, 1)
			out, in := open(t, client, server)
			const size = 1000 // of each write: too small to make the ring grow by itself
			at := 0
			for ; at+size <= ringsession.UnchargedBytes; at += size {
				n, err := write(out, numbered(at, size))
				require.NoError(t, err)
				require.Equal(t, size, n)
			}
			require.Less(t, fill(t, out, at, size), size)
			require.False(t, out.(transport.WritePoller).PollWritable())
			drain(t, in, 0, at)
		})
	}
}

// A write that has blocked at a full ring goes on when there is space, and makes the ring grow.
func TestBlockedWriterGrows(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	at := passTraffic(t, out, in, 0)
	n := fill(t, out, at, ringsession.UnchargedRegion)
	p := numbered(at+n, 16<<20)
	written := testwait.Start(func() error { _, err := out.Write(p); return err })
	drain(t, in, at, n+len(p))
	require.NoError(t, testwait.Finish(t, written))
	require.True(t, client.ShrinkScheduled())
}

// An idle ring releases the memory by which it has grown, and grows again with more traffic.
func TestIdleRingShrinks(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	at := 0
	for range 2 {
		at = passTraffic(t, out, in, at)
		n := fill(t, out, at, moreThanRing)
		require.Equal(t, ringsession.UnchargedRegion+ringsession.ChargedRegion, n)

		client.ShrinkIdle()
		client.ShrinkIdle()
		require.True(t, client.ShrinkScheduled(), "the ring is not empty")
		drain(t, in, at, n)
		at += n
		require.Equal(t, 1, fill(t, out, at, 1))
		drain(t, in, at, 1)
		at++
		client.ShrinkIdle()
		require.True(t, client.ShrinkScheduled(), "something was written")
		client.ShrinkIdle()
		require.False(t, client.ShrinkScheduled())
		kept := client.GrowthBytes()
		require.Equal(t, make([]byte, len(kept)), kept, "released pages are zero")
		require.Zero(t, client.FirstLevel().Load())
	}
}

// When both ends have closed a stream whose ring has grown, the memory is released, whichever end
// closes first and whatever is unread, but not before the reader has closed or read everything.
func TestClosedRingReleasesItsMemory(t *testing.T) {
	for name, closeBoth := range map[string]func(out, in transport.Stream, at, n int){
		"everything was read": func(out, in transport.Stream, at, n int) {
			drain(t, in, at, n)
			require.NoError(t, out.Close())
			require.NoError(t, in.Close())
		},
		"the writer first": func(out, in transport.Stream, at, n int) {
			require.NoError(t, out.Close())
			drain(t, in, at, n)
			_, err := in.Read(make([]byte, 1))
			require.Equal(t, io.EOF, err)
			require.NoError(t, in.Close())
		},
		"the reader first": func(out, in transport.Stream, at, n int) {
			require.NoError(t, in.Close())
			require.NoError(t, out.Close())
		},
		"both at once": func(out, in transport.Stream, at, n int) {
			closed := testwait.Start(in.Close)
			require.NoError(t, out.Close())
			require.NoError(t, testwait.Finish(t, closed))
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := sessions(t, 1)
			out, in := open(t, client, server)
			at := grow(t, out, in, 0)
			n := fill(t, out, at, moreThanRing)
			require.Equal(t, ringsession.ChargedRegion, n)
			require.NotZero(t, bytes.Trim(client.GrowthBytes(), "\x00"))
			closeBoth(out, in, at, n)
			require.Empty(t, bytes.Trim(client.GrowthBytes(), "\x00"))
		})
	}
}

// If a ring grows while the session shrinks idle rings, the next call that shrinks rings is
// scheduled.
func TestGrowthWhileIdleRingsShrink(t *testing.T) {
	client, server := sessions(t, 2)
	out, in := open(t, client, server)
	bulk, err := client.OpenBulk()
	require.NoError(t, err)
	bulkIn, err := server.Accept(t.Context())
	require.NoError(t, err)
	at := grow(t, out, in, 0)
	bulkAt := 0
	client.DuringShrinkIdle(func() { bulkAt = grow(t, bulk, bulkIn, 0) })
	require.True(t, client.ShrinkScheduled(), "two rings have grown")
	client.ShrinkIdle()
	require.False(t, client.ShrinkScheduled())
	require.Equal(t, ringsession.FirstRegion, fill(t, out, at, ringsession.FirstRegion+1))
	require.Equal(t, ringsession.FirstRegion, fill(t, bulk, bulkAt, ringsession.FirstRegion+1))
}

// No bytes are lost when a ring repeatedly grows while it is read and shrinks when it is empty.
func TestGrowthDuringShrinking(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	level, blocked := client.FirstLevel(), client.FirstWriterBlocked()
	stop := make(chan struct{})
	shrunk := testwait.Start(func() error {
		for {
			select {
			case <-stop:
				return nil
			default:
				client.ShrinkIdle()
				runtime.Gosched()
			}
		}
	})
	defer func() {
		close(stop)
		require.NoError(t, testwait.Finish(t, shrunk))
	}()
	burst := ringsession.ChargedTraffic + ringsession.ChargedRegion
	for at, round := 0, 0; round < race.Pick(8, 3); round++ {
		p := numbered(at, burst)
		written := testwait.Start(func() error { _, err := out.Write(p); return err })
		require.Eventually(t, func() bool { return blocked.Load() != 0 }, testwait.Limit, time.Millisecond)
		drain(t, in, at, burst-1)
		require.NoError(t, testwait.Finish(t, written))
		require.NotZero(t, level.Load(), "a byte is unread")
		drain(t, in, at+burst-1, 1)
		require.Eventually(t, func() bool { return level.Load() == 0 }, testwait.Limit, time.Millisecond)
		at += burst
	}
}

// A session with rings that have grown can be closed while they shrink.
func TestCloseDuringShrinking(t *testing.T) {
	for range race.Pick(20, 6) {
		client, server := sessions(t, 1)
		out, in := open(t, client, server)
		grow(t, out, in, 0)
		shrunk := testwait.Start(func() error {
			for range 10 {
				client.ShrinkIdle()
			}
			return nil
		})
		require.NoError(t, client.Close())
		require.NoError(t, testwait.Finish(t, shrunk))
	}
}

// The first bulk stream uses the segment of the first stream. So it needs no further descriptor,
// which the process may not have later.
func TestBulkNeedsNoOtherSegment(t *testing.T) {
	client, server := sessions(t, 4)
	open(t, client, server)
	before := client.Segments()
	bulk, err := client.OpenBulk()
	require.NoError(t, err)
	accepted, err := server.Accept(t.Context())
	require.NoError(t, err)
	grow(t, bulk, accepted, 0)
	require.Equal(t, before, client.Segments())
	require.Equal(t, 1, before)
}

// A reader wakes a blocked writer when half of the ring is free, not earlier.
func TestReaderWakesWriterAtHalf(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	require.Equal(t, ringsession.FirstRegion, fill(t, out, 0, ringsession.FirstRegion))
	client.FirstWriterBlocked().Store(1)
	drain(t, in, 0, ringsession.FirstRegion/2-1)
	require.EqualValues(t, 1, client.FirstWriterBlocked().Load())
	drain(t, in, ringsession.FirstRegion/2-1, 1)
	require.Zero(t, client.FirstWriterBlocked().Load())
}
