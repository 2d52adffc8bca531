//go:build !race

// The race detector allocates memory itself.

package pipe_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// echoing is a pipe whose peer sends every message back, without allocating memory for it.
type echoing struct {
	client *pipe.Pipe
	out    pipe.Message
	in     pipe.Allocation
}

func newEchoing(t testing.TB, p path, adjust ...func(*pipe.Options)) *echoing {
	client, server := connect(t, p, adjust...)
	e := &echoing{client: client}
	e.out, e.in = smallMessage()
	go func() {
		m, a := smallMessage()
		for {
			in, err := server.Next(context.Background())
			if err != nil {
				return
			}
			if in.Read(context.Background(), a) != nil {
				return
			}
			in.Release()
			if server.Write(context.Background(), &m) != nil {
				return
			}
		}
	}()
	return e
}

// smallMessage returns a message with metadata, a payload and a tensor, and an allocation for
// reading such a message. The allocation shares the memory of the message.
func smallMessage() (pipe.Message, pipe.Allocation) {
	payload, tensor := []byte("payload."), []byte("a tensor")
	m := pipe.Message{
		Metadata: []byte("metadata"),
		Payloads: []pipe.Payload{{Data: payload, Metadata: []byte("p")}},
		Tensors:  []pipe.Tensor{{Buffer: device.Bytes(tensor), Metadata: []byte("t")}},
	}
	return m, pipe.Allocation{Payloads: [][]byte{payload}, Tensors: []device.Buffer{device.Bytes(tensor)}}
}

func (e *echoing) roundTrip(ctx context.Context) error {
	if err := e.client.Write(ctx, &e.out); err != nil {
		return err
	}
	in, err := e.client.Next(ctx)
	if err != nil {
		return err
	}
	defer in.Release()
	return in.Read(ctx, e.in)
}

// TestSmallMessagesAllocateNothing checks that a round trip of a small message in the native
// dialect allocates no memory at either end. If the context is new for each round trip, at most two
// allocations come on top of those for the context.
func TestSmallMessagesAllocateNothing(t *testing.T) {
	long, cancel := context.WithCancel(context.Background())
	defer cancel()
	fresh := func(f func(context.Context)) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		f(ctx)
	}
	nothing := func(context.Context) {}
	itself := testing.AllocsPerRun(500, func() { fresh(nothing) })
	for name, c := range map[string]struct {
		with func(func(context.Context))
		most float64
	}{
		"background":        {func(f func(context.Context)) { f(context.Background()) }, 0},
		"long-lived":        {func(f func(context.Context)) { f(long) }, 0},
		"deadline for each": {fresh, 2 + itself},
	} {
		for _, path := range pathsOf(pipe.DialectNative) {
			if path.name != "uv+basic+native" && path.name != "shm+basic+native" {
				continue
			}
			t.Run(name+"/"+path.name, func(t *testing.T) {
				e := newEchoing(t, path)
				once := func(ctx context.Context) { require.NoError(t, e.roundTrip(ctx)) }
				allocs := testing.AllocsPerRun(500, func() { c.with(once) })
				require.LessOrEqual(t, allocs, c.most)
			})
		}
	}
}

// TestEventsAllocateNothing checks that Events add no allocation to small messages, whether their
// functions are nil or not.
func TestEventsAllocateNothing(t *testing.T) {
	var messages, bytes atomic.Int64
	for name, events := range map[string]*pipe.Events{
		"nil functions": {},
		"functions": {
			MessageWritten: func(i pipe.WrittenInfo) { messages.Add(1); bytes.Add(int64(i.Bytes)) },
			MessageRead:    func(i pipe.ReadInfo) { messages.Add(1); bytes.Add(int64(i.Bytes)) },
		},
	} {
		for _, path := range []string{"uv+basic+native", "shm+basic+native"} {
			t.Run(name+"/"+path, func(t *testing.T) {
				e := newEchoing(t, pathNamed(path), func(o *pipe.Options) { o.Events = events })
				once := func() { require.NoError(t, e.roundTrip(context.Background())) }
				require.Zero(t, testing.AllocsPerRun(500, once))
			})
		}
	}
	require.EqualValues(t, 16*messages.Load(), bytes.Load())
	require.Positive(t, messages.Load())
}

// BenchmarkSmallMessage measures round trips of a message with metadata, a payload and a tensor, on
// each native path.
func BenchmarkSmallMessage(b *testing.B) {
	for _, path := range pathsOf(pipe.DialectNative) {
		b.Run(path.name, func(b *testing.B) {
			e := newEchoing(b, path)
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, e.roundTrip(context.Background()))
			}
		})
	}
}
