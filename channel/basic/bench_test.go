package basic_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

func factory() channel.Factory { return basic.New() }

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
