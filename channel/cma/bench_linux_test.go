package cma_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

func TestSteadyFlowAllocatesNothing(t *testing.T) {
	move := channeltest.NewMover(t, func() channel.Factory { return cma.New(cma.Options{}) }, channeltest.Over(mem.New(nil), ""), 8)
	for range 100 {
		move() // the first transfers allocate queues and buffers
	}
	require.Zero(t, testing.AllocsPerRun(1000, move))
}

// receiver receives tensors from a source into a few buffers in turn.
type receiver struct {
	ch   channel.Channel
	dst  [inFlight][]byte
	done [inFlight]chan error
	next uint64
}

func newReceiver(t testing.TB, native bool, size int, pages string) *receiver {
	r := &receiver{ch: fromSource(t, native, size, pages)}
	for i := range r.dst {
		var err error
		r.dst[i], err = allocate(size, "heap")
		require.NoError(t, err)
		r.done[i] = make(chan error, 1)
		r.recv()
	}
	return r
}

func (r *receiver) recv() {
	i := r.next % inFlight
	r.ch.Recv(r.next, device.Bytes(r.dst[i]), func(err error) { r.done[i] <- err })
	r.next++
}

// take waits until the oldest tensor in progress has arrived, and begins to receive another one
// into its memory. It ends the test if the tensor failed.
func (r *receiver) take(t testing.TB) {
	if err := <-r.done[r.next%inFlight]; err != nil {
		t.Fatal(err)
	}
	r.recv()
}

// Small, large and very large tensors that another process sends arrive unchanged, in both
// dialects.
func TestSecondProcess(t *testing.T) {
	for _, native := range []bool{false, true} {
		for _, size := range []int{1, 100_000, 5<<20 + 1} {
			r := newReceiver(t, native, size, "heap")
			want, err := allocate(size, "heap")
			require.NoError(t, err)
			for range 3 * inFlight {
				i := r.next % inFlight
				require.NoError(t, <-r.done[i])
				require.Equal(t, want, r.dst[i])
				clear(r.dst[i])
				r.recv()
			}
		}
	}
}

// BenchmarkOneWay measures how fast tensors are received from another process, with several in
// progress at a time, and for comparison how fast this process copies as many bytes of its own
// memory.
func BenchmarkOneWay(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20, 16 << 20, 64 << 20} {
		b.Run(fmt.Sprintf("memcpy/%dKiB", size>>10), func(b *testing.B) { benchmarkMemcpy(b, size) })
		for _, pages := range []string{"heap", "huge"} {
			for _, native := range []bool{false, true} {
				b.Run(fmt.Sprintf("native=%v/%s/%dKiB", native, pages, size>>10), func(b *testing.B) {
					r := newReceiver(b, native, size, pages)
					for range inFlight {
						r.take(b)
					}
					b.SetBytes(int64(size))
					for b.Loop() {
						r.take(b)
					}
				})
			}
		}
	}
}

func benchmarkMemcpy(b *testing.B, size int) {
	src, err := allocate(size, "heap")
	require.NoError(b, err)
	var dst [inFlight][]byte
	for i := range dst {
		dst[i], err = allocate(size, "heap")
		require.NoError(b, err)
	}
	b.SetBytes(int64(size))
	i := 0
	for b.Loop() {
		copy(dst[i%inFlight], src)
		i++
	}
}

// BenchmarkNative measures transfers within this process, one after the other in the native
// dialect, with a receiver that begins before the sender and with one that begins after it.
func BenchmarkNative(b *testing.B) {
	for _, size := range []int{8, 64 << 10, 1 << 20} {
		for _, late := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d/late=%v", size, late), func(b *testing.B) {
				from, to, _, _ := pair(b, true)
				src, dst := device.Bytes(make([]byte, size)), device.Bytes(make([]byte, size))
				results := make(chan error, 2)
				done := func(err error) { results <- err }
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for id := uint64(0); b.Loop(); id++ {
					if late {
						from.Send(id, src, done)
						to.Recv(id, dst, done)
					} else {
						to.Recv(id, dst, done)
						from.Send(id, src, done)
					}
					for range 2 {
						if err := <-results; err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
	}
}
