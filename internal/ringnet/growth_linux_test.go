package ringnet_test

import (
	"bytes"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/internal/ringnet"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// fill writes without waiting as much as there is room for, or most, each byte by its
// number.
func fill(t *testing.T, s transport.Stream, from, most int) (n int) {
	t.Helper()
	n, err := s.(transport.Poller).TryWrite(numbered(from, most))
	require.NoError(t, err)
	return n
}

// numbered are n bytes, each by its number, which tells its place from others a power of
// two away. They are not to be changed.
func numbered(from, n int) []byte { return numbers()[from%251:][:n] }

// numbers are made once: under the race detector that takes long.
var numbers = sync.OnceValue(func() []byte {
	p := make([]byte, 251)
	for i := range p {
		p[i] = byte(i)
	}
	return bytes.Repeat(p, (20<<20)/len(p)+2)
})

// most is more than any ring holds.
const most = 4 << 20

func drain(t *testing.T, s transport.Stream, from, n int) {
	t.Helper()
	got := make([]byte, n)
	_, err := io.ReadFull(s, got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(numbered(from, n), got))
}

// unpaid has a ring that is small and empty grow as far as it does without the budget,
// and returns from where to go on. Its writes are as large as that takes.
func unpaid(t *testing.T, out, in transport.Stream, at int) int {
	t.Helper()
	require.Equal(t, ringnet.UnpaidBytes, fill(t, out, at, most))
	drain(t, in, at, ringnet.UnpaidBytes)
	return at + ringnet.UnpaidBytes
}

// pass sends as much through a ring that is small and empty as it takes for it to grow
// further when it is full next, and returns from where to go on.
func pass(t *testing.T, out, in transport.Stream, at int) int {
	t.Helper()
	end := at + ringnet.MuchTraffic - ringnet.UnpaidRegion
	for at = unpaid(t, out, in, at); at < end; at += ringnet.UnpaidRegion {
		require.Equal(t, ringnet.UnpaidRegion, fill(t, out, at, ringnet.UnpaidRegion))
		drain(t, in, at, ringnet.UnpaidRegion)
	}
	return at
}

// grow has a ring that is small and empty use its last region, and returns from where to
// go on.
func grow(t *testing.T, out, in transport.Stream, at int) int {
	t.Helper()
	at = pass(t, out, in, at)
	n := fill(t, out, at, most)
	require.Equal(t, ringnet.UnpaidRegion+ringnet.LargeRegion, n)
	drain(t, in, at, n)
	return at + n
}

// A ring through which small messages go uses its first region only, however many there
// are.
func TestSmallMessagesLeaveARingSmall(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	const size = 100
	for at := 0; at < 2*ringnet.LargeRegion; at += size {
		require.Equal(t, size, fill(t, out, at, size))
		drain(t, in, at, size)
	}
	require.Zero(t, client.FirstLevel().Load())
	require.False(t, client.Reducing())
	untouched := client.FirstRing()
	require.Equal(t, make([]byte, len(untouched)), untouched)
}

// A ring that is full grows once many times its size has gone through it.
func TestRingGrowsAfterTraffic(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	sizes, after := ringnet.Regions()
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

// A ring that grows loses nothing by that, and what its reader frees of the smaller region
// is no room any more.
func TestRingGrows(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	at := pass(t, out, in, 0)
	n := ringnet.UnpaidRegion + ringnet.LargeRegion
	require.Equal(t, n, fill(t, out, at, most))
	for _, small := range []int{1, ringnet.UnpaidRegion - 1} {
		require.Zero(t, fill(t, out, at+n, most))
		drain(t, in, at, small)
		at, n = at+small, n-small
	}
	for range 3 {
		require.Zero(t, fill(t, out, at+n, most))
		drain(t, in, at, 70_000)
		at += 70_000
		require.Equal(t, 70_000, fill(t, out, at+n-70_000, most))
	}
	drain(t, in, at, n)
	require.Equal(t, ringnet.LargeRegion, fill(t, out, at+n, most))
	drain(t, in, at+n, ringnet.LargeRegion)
	require.True(t, client.Reducing())
	require.False(t, server.Reducing(), "it has written nothing")
}

// A writer makes the ring larger rather than sleep, as long as that needs no budget.
func TestWriterGrowsRatherThanSleep(t *testing.T) {
	for name, write := range map[string]func(transport.Stream, []byte) (int, error){
		"Write": transport.Stream.Write,
		"TryWrite and Room": func(out transport.Stream, p []byte) (n int, err error) {
			for n < len(p) && err == nil && out.(transport.Poller).Room() {
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
			const size = 1000 // of each write: too little to count
			at := 0
			for ; at+size <= ringnet.UnpaidBytes; at += size {
				n, err := write(out, numbered(at, size))
				require.NoError(t, err)
				require.Equal(t, size, n)
			}
			require.Less(t, fill(t, out, at, size), size)
			require.False(t, out.(transport.Poller).Room())
			drain(t, in, 0, at)
		})
	}
}

// A writer that waits for room goes on when the ring has grown.
func TestWriterWaitsForGrowth(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	at := pass(t, out, in, 0)
	n := fill(t, out, at, ringnet.UnpaidRegion)
	p := numbered(at+n, 16<<20)
	written := patience.Start(func() error { _, err := out.Write(p); return err })
	drain(t, in, at, n+len(p))
	require.NoError(t, patience.Finish(t, written))
	require.True(t, client.Reducing())
}

// A ring to which nothing is written any more gives its memory back, and grows again
// when there is need.
func TestIdleRingShrinks(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	at := 0
	for range 2 {
		at = pass(t, out, in, at)
		n := fill(t, out, at, most)
		require.Equal(t, ringnet.UnpaidRegion+ringnet.LargeRegion, n)

		client.Reduce()
		client.Reduce()
		require.True(t, client.Reducing(), "all of it waits to be read")
		drain(t, in, at, n)
		at += n
		require.Equal(t, 1, fill(t, out, at, 1))
		drain(t, in, at, 1)
		at++
		client.Reduce()
		require.True(t, client.Reducing(), "something was written")
		client.Reduce()
		require.False(t, client.Reducing())
		kept := client.FirstRing()
		require.Equal(t, make([]byte, len(kept)), kept)
		require.Zero(t, client.FirstLevel().Load())
	}
}

// A stream that both ends leave while its ring is large gives the memory back, whoever
// leaves first and whatever was not read, and not before that has been read.
func TestLeftRingGivesItsMemoryBack(t *testing.T) {
	for name, leave := range map[string]func(out, in transport.Stream, at, n int){
		"all was read": func(out, in transport.Stream, at, n int) {
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
			left := patience.Start(in.Close)
			require.NoError(t, out.Close())
			require.NoError(t, patience.Finish(t, left))
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := sessions(t, 1)
			out, in := open(t, client, server)
			at := grow(t, out, in, 0)
			n := fill(t, out, at, most)
			require.Equal(t, ringnet.LargeRegion, n)
			require.NotZero(t, bytes.Trim(client.FirstRing(), "\x00"))
			leave(out, in, at, n)
			require.Empty(t, bytes.Trim(client.FirstRing(), "\x00"))
		})
	}
}

// A ring that grows while others are being looked at is looked at later.
func TestGrowthInTheMidstOfReduce(t *testing.T) {
	client, server := sessions(t, 2)
	out, in := open(t, client, server)
	bulk, err := client.OpenBulk()
	require.NoError(t, err)
	bulkIn, err := server.Accept(t.Context())
	require.NoError(t, err)
	at := grow(t, out, in, 0)
	bulkAt := 0
	client.ReduceAround(func() { bulkAt = grow(t, bulk, bulkIn, 0) })
	require.True(t, client.Reducing(), "two rings have grown")
	client.Reduce()
	require.False(t, client.Reducing())
	require.Equal(t, ringnet.FirstRegion, fill(t, out, at, ringnet.FirstRegion+1))
	require.Equal(t, ringnet.FirstRegion, fill(t, bulk, bulkAt, ringnet.FirstRegion+1))
}

// A ring that grows, while its reader reads, and gives its memory back, whenever it is
// empty, time after time, loses nothing.
func TestGrowthAgainstReduce(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	level, asleep := client.FirstLevel(), client.FirstWriter()
	stop := make(chan struct{})
	reduced := patience.Start(func() error {
		for {
			select {
			case <-stop:
				return nil
			default:
				client.Reduce()
				runtime.Gosched()
			}
		}
	})
	defer func() {
		close(stop)
		require.NoError(t, patience.Finish(t, reduced))
	}()
	burst := ringnet.MuchTraffic + ringnet.LargeRegion
	for at, round := 0, 0; round < race.Pick(8, 3); round++ {
		p := numbered(at, burst)
		written := patience.Start(func() error { _, err := out.Write(p); return err })
		require.Eventually(t, func() bool { return asleep.Load() != 0 }, patience.Limit, time.Millisecond)
		drain(t, in, at, burst-1)
		require.NoError(t, patience.Finish(t, written))
		require.NotZero(t, level.Load(), "a byte is unread")
		drain(t, in, at+burst-1, 1)
		require.Eventually(t, func() bool { return level.Load() == 0 }, patience.Limit, time.Millisecond)
		at += burst
	}
}

// A session may be closed with rings that have grown, at any time.
func TestCloseAgainstReduce(t *testing.T) {
	for range race.Pick(20, 6) {
		client, server := sessions(t, 1)
		out, in := open(t, client, server)
		grow(t, out, in, 0)
		reduced := patience.Start(func() error {
			for range 10 {
				client.Reduce()
			}
			return nil
		})
		require.NoError(t, client.Close())
		require.NoError(t, patience.Finish(t, reduced))
	}
}

// A session has what it needs for large data from its beginning on: no limit on files
// or their sizes that comes later stands in its way.
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

// A reader wakes a writer that sleeps when half of the ring is free, and not before.
func TestReaderWakesAtHalf(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	require.Equal(t, ringnet.FirstRegion, fill(t, out, 0, ringnet.FirstRegion))
	client.FirstWriter().Store(1)
	drain(t, in, 0, ringnet.FirstRegion/2-1)
	require.EqualValues(t, 1, client.FirstWriter().Load())
	drain(t, in, ringnet.FirstRegion/2-1, 1)
	require.Zero(t, client.FirstWriter().Load())
}
