package mpt_test

import (
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

func TestSteadyFlowAllocatesNothing(t *testing.T) {
	over := mem.New(nil)
	factory := func() channel.Factory { return mpt.New(lanes(3, over)) }
	move := channeltest.NewMover(t, factory, channeltest.Over(mem.New(nil), ""), 8)
	for range 100 {
		move() // the first transfers allocate queues and buffers
	}
	require.Zero(t, testing.AllocsPerRun(1000, move))
}

// depth is the number of tensors that a benchmark has in progress.
const depth = 4

// BenchmarkOneWay measures how fast tensors are sent within this process over TCP, in both
// dialects, and for comparison over plain sockets that carry equal parts.
func BenchmarkOneWay(b *testing.B) {
	for _, mib := range []int{1, 4, 16, 64} {
		for _, n := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("%dMiB/%d/bare", mib, n), func(b *testing.B) { flow(b, mib<<20, bareFlow(b, n)) })
			b.Run(fmt.Sprintf("%dMiB/%d/compatible", mib, n), func(b *testing.B) { flow(b, mib<<20, channelFlow(b, n, compatPair)) })
			b.Run(fmt.Sprintf("%dMiB/%d/native", mib, n), func(b *testing.B) { flow(b, mib<<20, channelFlow(b, n, nativePair)) })
		}
	}
}

// mover moves a tensor and calls done twice.
type mover func(id uint64, src, dst []byte, done func(error))

func flow(b *testing.B, size int, move mover) {
	free := make(chan error, 2*depth)
	var from, to [depth][]byte
	for i := range depth {
		from[i], to[i] = numbered(size), numbered(size)
		free <- nil
		free <- nil
	}
	done := func(err error) { free <- err }
	id := uint64(0)
	step := func() {
		for range 2 {
			require.NoError(b, <-free)
		}
		move(id, from[id%depth], to[id%depth], done)
		id++
	}
	for range 2 * depth {
		step()
	}
	b.SetBytes(int64(size))
	before := cpu()
	for b.Loop() {
		step()
	}
	b.ReportMetric((cpu()-before).Seconds()*1e9/float64(b.N)/float64(size), "cpu-s/GB")
	for range 2 * depth {
		require.NoError(b, <-free)
	}
}

func channelFlow(b *testing.B, n int, open func(testing.TB, *mpt.Factory, *mpt.Factory, channeltest.Connect) (*end, *end)) mover {
	over := uv.New()
	from, to := open(b, mpt.New(lanes(n, over)), mpt.New(lanes(n, over)), channeltest.Over(uv.New(), "127.0.0.1:0"))
	return func(id uint64, src, dst []byte, done func(error)) {
		from.Send(id, device.Bytes(src), done)
		to.Recv(id, device.Bytes(dst), done)
	}
}

// bareFlow returns a mover that divides each tensor into equal parts and sends them over n plain
// TCP connections, with one goroutine that writes and one that reads for each. It is the yardstick
// for the channel.
func bareFlow(b *testing.B, n int) mover {
	type part struct {
		p    []byte
		done *sync.WaitGroup
	}
	var writers, readers []chan part
	serve := func(do func([]byte) error) chan part {
		parts := make(chan part, depth)
		go func() {
			for x := range parts {
				if err := do(x.p); err != nil {
					b.Error(err)
				}
				x.done.Done()
			}
		}()
		b.Cleanup(func() { close(parts) })
		return parts
	}
	for range n {
		c, l := sockets(b)
		writers = append(writers, serve(func(p []byte) error { _, err := c.Write(p); return err }))
		readers = append(readers, serve(func(p []byte) error { _, err := io.ReadFull(l, p); return err }))
	}
	share := func(to []chan part, p []byte, done func(error)) {
		var all sync.WaitGroup
		all.Add(n)
		for i, parts := range to {
			parts <- part{p[mpt.Bound(len(p), i, n):mpt.Bound(len(p), i+1, n)], &all}
		}
		go func() { all.Wait(); done(nil) }()
	}
	return func(_ uint64, src, dst []byte, done func(error)) {
		share(writers, src, done)
		share(readers, dst, done)
	}
}

// cpu returns the CPU time, user and system, that this process has used, or 0 if it is not known.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func sockets(b *testing.B) (dialled, accepted net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer l.Close()
	dialled, err = net.Dial("tcp", l.Addr().String())
	require.NoError(b, err)
	accepted, err = l.Accept()
	require.NoError(b, err)
	b.Cleanup(func() { dialled.Close(); accepted.Close() })
	return dialled, accepted
}
