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

// pass sends as much through a ring as it takes for it to grow when it is full next,
// and returns from where to go on.
func pass(t *testing.T, out, in transport.Stream, at int) int {
	t.Helper()
	for end := at + ringnet.MuchTraffic - ringnet.StartRing; at < end; at += ringnet.StartRing {
		require.Equal(t, ringnet.StartRing, fill(t, out, at, most))
		drain(t, in, at, ringnet.StartRing)
	}
	return at
}

// grow has a ring that is small and empty grow, and returns from where to go on.
func grow(t *testing.T, out, in transport.Stream, at int) int {
	t.Helper()
	at = pass(t, out, in, at)
	for _, n := range []int{ringnet.StartRing, ringnet.LargeRing} {
		require.Equal(t, n, fill(t, out, at, most))
		drain(t, in, at, n)
		at += n
	}
	return at
}

// A ring that was full grows when all that was in it has been read, and loses
// nothing by that.
func TestRingGrows(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	at := pass(t, out, in, 0)
	require.Equal(t, ringnet.StartRing, fill(t, out, at, most))
	require.False(t, client.Reducing())
	require.Zero(t, fill(t, out, at+ringnet.StartRing, most))
	drain(t, in, at, ringnet.StartRing-1)
	at += ringnet.StartRing
	require.Zero(t, fill(t, out, at, most), "one byte is not read")
	drain(t, in, at-1, 1)
	for range 3 {
		require.Equal(t, ringnet.LargeRing, fill(t, out, at, most))
		require.Zero(t, fill(t, out, at, most))
		drain(t, in, at, 70_000)
		require.Equal(t, 70_000, fill(t, out, at+ringnet.LargeRing, most))
		drain(t, in, at+70_000, ringnet.LargeRing)
		at += ringnet.LargeRing + 70_000
	}
	require.True(t, client.Reducing())
	require.False(t, server.Reducing(), "it has written nothing")
}

// A writer that waits for room goes on when the ring has grown.
func TestWriterWaitsForGrowth(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	at := pass(t, out, in, 0)
	n := fill(t, out, at, most)
	require.Zero(t, fill(t, out, at+n, most))
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
		drain(t, in, at, n)
		at += n
		n = fill(t, out, at, most)
		require.Equal(t, ringnet.LargeRing, n)

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
		kept := client.FirstRing()[ringnet.StartRing+8<<10:][:ringnet.LargeRing-ringnet.StartRing-16<<10]
		require.Equal(t, make([]byte, len(kept)), kept)
		require.Equal(t, ringnet.StartRing, fill(t, out, at, most))
		drain(t, in, at, ringnet.StartRing)
		at += ringnet.StartRing
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
			require.Equal(t, ringnet.LargeRing, n)
			large := client.FirstRing()[ringnet.StartRing+8<<10:][:ringnet.LargeRing-ringnet.StartRing-16<<10]
			require.NotZero(t, bytes.Trim(large, "\x00"))
			leave(out, in, at, n)
			require.Empty(t, bytes.Trim(large, "\x00"))
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
	require.Equal(t, ringnet.StartRing, fill(t, out, at, most))
	require.Equal(t, ringnet.StartRing, fill(t, bulk, bulkAt, most))
}

// A ring that grows, while its reader reads, and gives its memory back, whenever it is
// empty, time after time, loses nothing.
func TestGrowthAgainstReduce(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	grown, asleep := client.FirstGrown(), client.FirstWriter()
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
	const burst = 3 << 20
	for at, round := 0, 0; round < race.Pick(8, 3); round++ {
		at = pass(t, out, in, at)
		p := numbered(at, burst)
		written := patience.Start(func() error { _, err := out.Write(p); return err })
		require.Eventually(t, func() bool { return asleep.Load() != 0 }, patience.Limit, time.Millisecond)
		drain(t, in, at, burst-1)
		require.NoError(t, patience.Finish(t, written))
		require.EqualValues(t, 1, grown.Load(), "a byte is unread")
		drain(t, in, at+burst-1, 1)
		require.Eventually(t, func() bool { return grown.Load() == 0 }, patience.Limit, time.Millisecond)
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
	require.Equal(t, ringnet.StartRing, fill(t, bulk, 0, most))
	drain(t, accepted, 0, ringnet.StartRing)
	require.Equal(t, before, client.Segments())
	require.Equal(t, 1, before)
}

// A reader wakes a writer that sleeps when half of the ring is free, and not before.
func TestReaderWakesAtHalf(t *testing.T) {
	client, server := sessions(t, 1)
	out, in := open(t, client, server)
	require.Equal(t, ringnet.StartRing, fill(t, out, 0, most))
	client.FirstWriter().Store(1)
	drain(t, in, 0, ringnet.StartRing/2-1)
	require.EqualValues(t, 1, client.FirstWriter().Load())
	drain(t, in, ringnet.StartRing/2-1, 1)
	require.Zero(t, client.FirstWriter().Load())
}
