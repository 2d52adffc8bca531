package cudaipc

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// basicDialects are factories of cuda_basic for both dialects.
var basicDialects = []struct {
	name   string
	native bool
	host   channel.Factory
}{
	{"compatible", false, basic.New()},
	{"native", true, xth.New()},
}

// inBasicDialects runs test with a factory of cuda_basic for each dialect.
func inBasicDialects(t *testing.T, test func(t *testing.T, f *fixture, b *basicFactory, native bool)) {
	for _, d := range basicDialects {
		t.Run(d.name, func(t *testing.T) {
			f := newFixture(t, Options{})
			test(t, f, NewBasic(f.Kind, d.host).(*basicFactory), d.native)
		})
	}
}

// used returns the bytes of all slots of b, and fails the test if a ring has more than it may.
func used(t *testing.T, b *basicFactory, channels int) (n int) {
	t.Helper()
	for _, rings := range [][]*ring{b.in, b.out} {
		for _, r := range rings {
			r.mu.Lock()
			require.LessOrEqual(t, r.used, ringSize+channels*nativeChunk)
			n += r.used
			r.mu.Unlock()
		}
	}
	return n
}

// Tensors larger than the rings move both ways over several channels at once, through no more
// page-locked memory than the rings may have, and no slot stays in use.
func TestRingsAreBounded(t *testing.T) {
	const size, channels = ringSize + 3*nativeChunk/2, 3
	inBasicDialects(t, func(t *testing.T, f *fixture, b *basicFactory, native bool) {
		var waits []func()
		var targets []device.Buffer
		for i := range channels {
			there := openPair(t, f, b, native)
			back := &pair{fixture: f, from: there.to, to: there.from, next: there.next}
			if native {
				back.next = 1 << 62 // ids of both directions differ
			}
			for j, p := range []*pair{there, back} {
				dst := f.tensor(1, make([]byte, size))
				targets = append(targets, dst)
				waits = append(waits, p.start(t, f.tensor(0, large(2*i+j, size)), dst))
			}
		}
		for _, wait := range waits {
			wait()
			used(t, b, channels)
		}
		for i, dst := range targets {
			require.True(t, bytes.Equal(large(i, size), f.bytesOf(dst)), "tensor %d", i)
		}
		require.Eventually(t, func() bool { return used(t, b, channels) == 0 }, testwait.Limit, time.Millisecond)
		for _, g := range f.gpus {
			blocks := 0
			for _, block := range g.pinned.all {
				if len(block.data) == b.chunk(native) {
					blocks++
				}
			}
			require.LessOrEqual(t, blocks, 2*(ringSize/b.chunk(native)+channels), "page-locked memory of %v", g.device)
		}
	})
}

func (f *basicFactory) chunk(native bool) int {
	if native {
		return nativeChunk
	}
	return compatChunk
}

// Tensors whose streams are held occupy no slots, at either end: a tensor on another channel moves.
func TestHeldStreamsOccupyNoSlots(t *testing.T) {
	const size = 2 * ringSize
	inBasicDialects(t, func(t *testing.T, f *fixture, b *basicFactory, native bool) {
		held, other := openPair(t, f, b, native), openPair(t, f, b, native)
		src, dst := f.tensor(0, large(1, size)), f.tensor(1, make([]byte, size))
		for _, buf := range []device.Buffer{src, dst} {
			defer f.hold(buf.Stream().(*Stream))()
			f.write(buf.Slice(0, 100), pattern(1, 100)) // is not done
		}
		_ = held.start(t, src, dst)
		small := f.tensor(1, make([]byte, 1000))
		other.start(t, f.tensor(0, pattern(3, 1000)), small)()
		require.Equal(t, pattern(3, 1000), f.bytesOf(small))
		require.Eventually(t, func() bool { return used(t, b, 2) == 0 }, testwait.Limit, time.Millisecond)
	})
}

// A channel whose peer does not receive does not keep others from moving tensors, although its chunks
// fill the ring.
func TestPeerThatDoesNotReceiveBlocksNoOther(t *testing.T) {
	inBasicDialects(t, func(t *testing.T, f *fixture, b *basicFactory, native bool) {
		stuck, other := openPair(t, f, b, native), openPair(t, f, b, native)
		for id := range uint64(3) {
			stuck.from.Send(id, f.tensor(0, make([]byte, ringSize)), func(error) {})
		}
		dst := f.tensor(1, make([]byte, 3*nativeChunk))
		other.start(t, f.tensor(0, large(1, 3*nativeChunk)), dst)()
		require.True(t, bytes.Equal(large(1, 3*nativeChunk), f.bytesOf(dst)))
	})
}

// Aborts and the end of the channel at any time return the slots, at both ends.
func TestEndsReturnSlots(t *testing.T) {
	const size = 3 * nativeChunk
	ends := map[string]func(p *pair){
		"close":       func(p *pair) { p.from.Close(io.EOF) },
		"peer closes": func(p *pair) { p.to.Close(io.EOF) },
		"abort": func(p *pair) {
			p.from.Abort(0, io.EOF)
			p.to.Abort(0, io.EOF)
		},
	}
	inBasicDialects(t, func(t *testing.T, f *fixture, b *basicFactory, native bool) {
		src, dst := f.tensor(0, make([]byte, size)), f.tensor(1, make([]byte, size))
		for name, end := range ends {
			for polls := range 12 {
				p := openPair(t, f, b, native)
				sent, received := make(chan error, 1), make(chan error, 1)
				p.to.Recv(0, dst, func(err error) { received <- err })
				p.from.Send(0, src, func(err error) { sent <- err })
				for range polls * polls * 20 {
					used(t, b, 1)
				}
				end(p)
				_, _ = testwait.Finish(t, sent), testwait.Finish(t, received)
				require.Eventually(t, func() bool { return used(t, b, 1) == 0 }, testwait.Limit, time.Millisecond)
				require.NoError(t, p.from.Close(nil), name)
				require.NoError(t, p.to.Close(nil), name)
			}
		}
	})
}

// large returns n bytes that differ for each seed; it is faster than pattern.
func large(seed, n int) []byte {
	const period = 4099 // a prime, so that bytes at a wrong offset differ
	return bytes.Repeat(pattern(seed, period), n/period+1)[:n]
}

// A slot whose copy still runs when the channel closes is not used by another channel before the copy
// has completed.
func TestSlotOfARunningCopyIsNotReused(t *testing.T) {
	inBasicDialects(t, func(t *testing.T, f *fixture, b *basicFactory, native bool) {
		targets := []device.Buffer{f.tensor(1, make([]byte, 1000)), f.tensor(1, make([]byte, 1000)), f.tensor(1, make([]byte, 1000))}
		first := openPair(t, f, b, native)
		first.start(t, f.tensor(-1, pattern(0, 1000)), targets[0])() // creates the ring's stream
		f.synchronize(targets[0].Stream())
		release := f.hold(b.in[targets[0].Device().Index].stream)
		first.start(t, f.tensor(-1, pattern(1, 1000)), targets[1])()
		require.NoError(t, first.to.Close(nil))
		openPair(t, f, b, native).start(t, f.tensor(-1, pattern(2, 1000)), targets[2])()
		release()
		for i, dst := range targets {
			require.Equal(t, pattern(i, 1000), f.bytesOf(dst), "tensor %d", i)
		}
	})
}
