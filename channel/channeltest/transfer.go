package channeltest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
)

var transferCases = []testCase{
	{"Sizes", "Channel: A Send of one end matches the Recv of the other end that has the same id.", func(t *testing.T, b Backend) {
		sizes := []int{1, 2, 7, 8, 4095, 4096, 65535, 65536, 65537, 1 << 20, 1<<20 + 1, 3<<20 - 1}
		connect, listen := open(t, b)
		exchange(t, b, connect, listen, sizes...)
		for _, n := range sizes {
			exchange(t, b, listen, connect, n)
		}
	}},

	{"Large", "Channel: A Send of one end matches the Recv of the other end that has the same id.", func(t *testing.T, b Backend) {
		connect, listen := open(t, b)
		large := race.Pick(64<<20, 16<<20) // many chunks on every path
		checkForward := begin(t, b, connect, listen, large)
		checkReverse := begin(t, b, listen, connect, large)
		checkForward()
		checkReverse()
	}},

	{"ManyBothWays", "Channel: A Send of one end matches the Recv of the other end that has the same id.", func(t *testing.T, b Backend) {
		connect, listen := open(t, b)
		sizes := make([]int, race.Pick(500, 200))
		r := rand.New(rand.NewPCG(1, 2))
		for i := range sizes {
			sizes[i] = r.IntN(3000) * r.IntN(2)
			if i%50 == 0 {
				sizes[i] = 300_000
			}
		}
		checkForward := begin(t, b, connect, listen, sizes...)
		checkReverse := begin(t, b, listen, connect, sizes...)
		checkForward()
		checkReverse()
	}},

	{"RecvBeforeSend", "Channel: A Recv may come before the peer's Send, in both dialects.", func(t *testing.T, b Backend) {
		connect, listen := open(t, b)
		p := defaultAllocator(t, b)
		dst := p.alloc(1000)
		recv := listen.recv(dst)
		yield()
		require.False(t, recv.isDone())
		wantOK(connect.send(p.allocWith(random(1000, 1))), recv)
		p.want(random(1000, 1), dst, "tensor")
	}},

	{"OneAtATime", "Channel: A Send of one end matches the Recv of the other end that has the same id.", func(t *testing.T, b Backend) {
		connect, listen := open(t, b)
		for i := range 50 {
			exchange(t, b, connect, listen, i)
			exchange(t, b, listen, connect, 50-i)
		}
	}},

	{"MemoryIsFreeAfterDone", "Channel: Until done is called the memory belongs to the channel. After that host memory may be reused; on a device with streams the work is enqueued on the buffer's stream, and whatever reuses the memory must be ordered after it on that stream.", memoryIsFreeAfterDone},
	{"Segments", "Channel: Host memory may consist of several segments, in different ways at the two ends.", segments},
	{"EmptyPutsNothingOnTheWire", "Channel: The pipe handles empty tensors itself, but Send and Recv accept them: they send nothing, and complete without error while the channel has not ended.", emptyPutsNothingOnTheWire},
}

// memoryIsFreeAfterDone overwrites the sender's memory directly after done of the Send, and checks
// that the contents before that arrive.
func memoryIsFreeAfterDone(t *testing.T, b Backend) {
	connect, listen := open(t, b)
	p := defaultAllocator(t, b)
	src, dst := p.alloc(5000), p.alloc(5000)
	for i := range uint64(50) {
		p.write(src, random(5000, i))
		recv := listen.recv(dst)
		wantOK(connect.send(src))
		p.poison(src)
		wantOK(recv)
		p.want(random(5000, i), dst, "tensor")
		p.poison(dst)
	}
}

// segments sends host memory that is in several segments into memory that is divided differently,
// and checks that the bytes arrive. It skips the test if the channel does not serve host memory.
func segments(t *testing.T, b Backend) {
	p := defaultAllocator(t, b)
	if p.device != device.CPU() {
		t.Skip("the channel does not serve host memory")
	}
	connect, listen := open(t, b)
	layouts := [][]int{{}, {0}, {1}, {500, 0, 499}, {1, 2, 3, 0, 4}, {999}, {1000, 0}}
	for _, from := range layouts {
		for _, to := range layouts {
			data := random(1000, uint64(len(from)))
			src, dst := device.Host(split(data, from)...), device.Host(split(make([]byte, 1000), to)...)
			wantOK(listen.recv(dst), connect.send(src))
			p.want(data, dst, fmt.Sprint(from, to))
		}
	}
	data := random(300, 1)
	dst := p.alloc(300)
	wantOK(connect.send(device.Host(split(data, repeat(299, 1))...)), listen.recv(dst))
	p.want(data, dst, "one byte each")
}

// split divides data into pieces with these sizes, followed by one piece with the remaining bytes,
// which may be empty. The pieces share data's memory.
func split(data []byte, sizes []int) [][]byte {
	var out [][]byte
	for _, n := range sizes {
		out = append(out, data[:n])
		data = data[n:]
	}
	return append(out, data)
}

// emptyPutsNothingOnTheWire checks that empty tensors add neither frames nor bytes to those written
// to the connections, because other implementations expect none.
func emptyPutsNothingOnTheWire(t *testing.T, b Backend) {
	written := func(sizes ...int) (frames, bytes int64) {
		near, far := connections(t, b)
		c := &counter{}
		connect, listen := openOn(t, b, c.wrap(near), c.wrap(far))
		exchange(t, b, connect, listen, sizes...)
		connect.close(nil)
		listen.close(nil)
		return c.frames.Load(), c.bytes.Load()
	}
	frames, bytes := written(10, 20)
	withEmpty, alsoBytes := written(0, 10, 0, 0, 20, 0)
	require.Equal(t, frames, withEmpty)
	require.Equal(t, bytes, alsoBytes)
}
