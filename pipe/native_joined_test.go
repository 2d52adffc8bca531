package pipe_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// countedSends makes channels that count the transfers that they send.
type countedSends struct {
	channel.Factory
	sends *atomic.Int64
}

func (f countedSends) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	ch, err := f.Factory.New(ctx, link, role)
	return countedChannel{ch, f.sends}, err
}

type countedChannel struct {
	channel.Channel
	sends *atomic.Int64
}

func (c countedChannel) Send(id uint64, src device.Buffer, done func(error)) {
	c.sends.Add(1)
	c.Channel.Send(id, src, done)
}

// TestJoinedTensors checks that consecutive tensors of a message that are large, contiguous, not
// compressed and in memory of the hosts at both ends arrive unchanged in one transfer, also with
// small ones among them. The counters of the channel count tensors.
func TestJoinedTensors(t *testing.T) {
	var sends atomic.Int64
	client, server := connect(t, nativePath(), func(o *pipe.Options) {
		o.Channels = []pipe.ChannelEntry{{Name: basic.Name, Priority: 1, Factory: countedSends{basic.New(), &sends}}}
	})
	cpu, open := device.CPU(), device.Device{}
	sizes := []int{large, large + 1, 10, 0, large + 2}
	all := message(1, []int{large}, sizes, cpu, cpu, cpu, cpu, cpu)
	compressed := message(2, nil, sizes, cpu, cpu, cpu, cpu, cpu)
	compressed.Tensors[1].Compression = pipe.CompressionS2
	random, _ := compressed.Tensors[1].Buffer.Contiguous()
	_, _ = rand.NewChaCha8([32]byte{}).Read(random[:large/2]) // so that its form is not inline
	chosen := message(3, nil, sizes, cpu, open, cpu, cpu, cpu)
	many := &pipe.Message{}
	p := pattern(64<<10+1, 5)
	for range 1002 {
		many.Tensors = append(many.Tensors, pipe.Tensor{Buffer: device.Bytes(p), TargetDevice: cpu})
	}
	for _, c := range []struct {
		name             string
		m                *pipe.Message
		sends, transfers int64
	}{
		{"all", all, 1, 3},
		{"one compressed", compressed, 3, 3},
		{"one for a device that the receiver chooses", chosen, 3, 3},
		{"a thousand and two", many, 2, 1002},
	} {
		t.Run(c.name, func(t *testing.T) {
			sends.Store(0)
			sent, received := client.Stats().Channels[0].Sent, server.Stats().Channels[0].Received
			exchange(t, client, server, c.m)
			require.Equal(t, 2*c.sends, sends.Load(), "in both directions")
			require.EqualValues(t, c.transfers, client.Stats().Channels[0].Sent.Messages-sent.Messages)
			require.EqualValues(t, c.transfers, server.Stats().Channels[0].Received.Messages-received.Messages)
		})
	}

	scattered := message(4, nil, sizes, cpu, cpu, cpu, cpu, cpu)
	scattered.Tensors[1].Buffer = device.Host(pattern(large, 1), pattern(1, 2))
	sends.Store(0)
	op := client.WriteAsync(testContext(t), scattered)
	a := read(t, next(t, server))
	require.NoError(t, op.Wait(testContext(t)))
	require.EqualValues(t, 3, sends.Load(), "one tensor has two pieces")
	got, _ := a.Tensors[1].Contiguous()
	require.True(t, bytes.Equal(append(pattern(large, 1), pattern(1, 2)...), got))
}

// TestJoinedTensorsOnEveryPath checks that joined tensors arrive unchanged over each transport and
// channel.
func TestJoinedTensorsOnEveryPath(t *testing.T) {
	onNativePaths(t, func(t *testing.T, client, server *pipe.Pipe) {
		cpu := device.CPU()
		exchange(t, client, server,
			message(1, nil, []int{large, large}, cpu, cpu),
			message(2, []int{large}, []int{large, 1, 100_000, large + 7, 0, 200_000}, cpu, cpu, cpu, cpu, cpu, cpu),
			message(3, nil, []int{100_000, large}, cpu, cpu))
	})
}

// waitSignal is a context that closes begun at the first call of Done.
type waitSignal struct {
	context.Context
	begun chan struct{}
	once  *sync.Once
}

func (w waitSignal) Done() <-chan struct{} {
	w.once.Do(func() { close(w.begun) })
	return w.Context.Done()
}

// TestJoinedTensorsToStreams checks that joined tensors are received into host memory with streams of
// a kind that Options.Kinds lacks only after each stream has done its earlier work, and that Read ends
// before that with its context, with the write and with the pipe.
func TestJoinedTensorsToStreams(t *testing.T) {
	kind := npu.NewKind()
	t.Cleanup(kind.Close)
	client, server := connect(t, nativePath())
	cpu := device.CPU()
	for late := range 3 {
		for _, end := range []string{"stream", "Read's context", "Write's context", "pipe"} {
			t.Run(fmt.Sprintf("tensor %d, %s", late, end), func(t *testing.T) {
				if end == "pipe" {
					client, server = connect(t, nativePath())
				}
				m := message(1, nil, []int{large, large, large}, cpu, cpu, cpu)
				writing, stopWrite := context.WithCancelCause(testContext(t))
				op := client.WriteAsync(writing, m)
				in := next(t, server)
				a := pipe.NewAllocation(in.Descriptor())
				_, stream := alloc(t, kind, 0, 1)
				release := stream.Hold()
				a.Tensors[late] = a.Tensors[late].WithStream(stream)
				reading, stopRead := context.WithCancelCause(testContext(t))
				done := make(chan error, 1)
				waits := waitSignal{reading, make(chan struct{}), new(sync.Once)}
				go func() { done <- in.Read(waits, a) }()
				<-waits.begun
				memory, _ := a.Tensors[late].Contiguous()
				copy(memory, "the stream") // work that is still enqueued
				require.Equal(t, "the stream", string(memory[:10]))
				switch end {
				case "stream":
					release()
					require.NoError(t, <-done)
					same(t, m, in.Descriptor(), a)
					require.NoError(t, op.Wait(testContext(t)))
				case "Read's context":
					stopRead(errEnough)
					require.ErrorIs(t, <-done, errEnough)
					release()
					require.NoError(t, op.Wait(testContext(t)))
				case "Write's context":
					stopWrite(errEnough)
					require.ErrorIs(t, <-done, pipe.ErrAborted)
					release()
					require.ErrorIs(t, op.Wait(testContext(t)), errEnough)
				case "pipe":
					client.Abort(nil)
					err := <-done
					require.True(t, isAny(err, []error{pipe.ErrPeerClosed, pipe.ErrPeerLost, pipe.ErrAborted}), "%v", err)
					release()
					require.Error(t, op.Wait(testContext(t)))
				}
				stopRead(nil)
				stopWrite(nil)
				in.Release()
			})
		}
		client, server = connect(t, nativePath())
	}
	exchange(t, client, server, message(2, []int{1}, []int{large}))
}
