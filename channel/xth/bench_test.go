package xth_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

func factory() channel.Factory { return xth.New() }

func TestSteadyFlowAllocatesNothing(t *testing.T) {
	move := channeltest.NewMover(t, factory, channeltest.Over(mem.New(nil), ""), 8)
	for range 100 {
		move() // the first transfers allocate queues and buffers
	}
	require.Zero(t, testing.AllocsPerRun(1000, move))
}

func BenchmarkTransfer(b *testing.B) {
	for _, tr := range transports {
		for _, size := range []int{8, 16 << 20} {
			b.Run(fmt.Sprintf("%s/%d", tr.name, size), func(b *testing.B) {
				channeltest.Benchmark(b, factory, channeltest.Over(viable(b, tr.mk()), tr.addr), size)
			})
		}
	}
}

// BenchmarkNative measures transfers one after the other in the native dialect, with a receiver
// that begins before the sender and with one that begins after it.
func BenchmarkNative(b *testing.B) {
	for _, size := range []int{8, 64 << 10, 16 << 20} {
		for _, late := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d/late=%v", size, late), func(b *testing.B) {
				near, far := connections(b)
				from, _ := openNative(b, near)
				to, _ := openNative(b, far)
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
