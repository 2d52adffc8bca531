package pipe_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

var errEnough = errors.New("enough")

// cancelled returns a context, which is not cancelled yet and ends after a minute, and a function
// that cancels it with the cause errEnough.
func cancelled(t *testing.T) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(testContext(t))
	return ctx, func() { cancel(errEnough) }
}

// blockWriter makes client write a message whose payload is too large to be sent before the server
// supplies memory for it, so that later messages of client stay queued. It returns the write, which
// ctx can cancel, the message, and the message as server has received it, not yet read.
func blockWriter(t *testing.T, ctx context.Context, client, server *pipe.Pipe) (*pipe.WriteOp, *pipe.Message, *pipe.Incoming) {
	m := message(99, []int{32 << 20}, nil)
	op := client.WriteAsync(ctx, m)
	in, err := server.Next(testContext(t))
	require.NoError(t, err)
	return op, m, in
}

func TestWriteCancelledBeforeFirstByte(t *testing.T) {
	onPaths(t, pathsOf(pipe.DialectCompatible), func(t *testing.T, client, server *pipe.Pipe) {
		first, blocking, in := blockWriter(t, testContext(t), client, server)
		ctx, cancel := cancelled(t)
		second := client.WriteAsync(ctx, message(2, []int{1}, []int{1}))
		third := client.WriteAsync(testContext(t), message(3, []int{1}, []int{1}, device.CPU()))
		cancel()
		err := second.Wait(testContext(t))
		require.ErrorIs(t, err, errEnough)
		require.NotErrorIs(t, err, pipe.ErrCancelled)

		same(t, blocking, in.Descriptor(), read(t, in))
		expect(t, server, message(3, []int{1}, []int{1}, device.CPU()))
		require.NoError(t, first.Wait(testContext(t)))
		require.NoError(t, third.Wait(testContext(t)))
	})
}

func TestWriteWithEndedContextSendsNothing(t *testing.T) {
	client, server := connect(t, memPath())
	ctx, cancel := cancelled(t)
	cancel()
	require.ErrorIs(t, client.Write(ctx, message(1, nil, nil)), errEnough)
	write(t, client, message(2, nil, nil))
	expect(t, server, message(2, nil, nil))
}

// TestWriteCancelledAfterFirstByte checks, in the compatible dialect, that cancelling a write after
// its first byte was sent fails the pipe. The error of the write matches the cause of its context;
// the errors of other calls match ErrCancelled and not that cause.
func TestWriteCancelledAfterFirstByte(t *testing.T) {
	onPaths(t, pathsOf(pipe.DialectCompatible), func(t *testing.T, client, server *pipe.Pipe) {
		ctx, cancel := cancelled(t)
		op, m, _ := blockWriter(t, ctx, client, server)
		next := client.WriteAsync(testContext(t), message(2, nil, nil))
		cancel()
		err := op.Wait(testContext(t))
		require.ErrorIs(t, err, errEnough)
		require.ErrorIs(t, err, pipe.ErrCancelled)
		overwrite(m) // the race detector reports a reader

		err = next.Wait(testContext(t))
		require.ErrorIs(t, err, pipe.ErrCancelled)
		require.NotErrorIs(t, err, errEnough)
		_, err = client.Next(testContext(t))
		require.ErrorIs(t, err, pipe.ErrCancelled)
	})
}

// TestWriteCancelledBeforeReply checks, in the compatible dialect, that a write can be cancelled
// after its descriptor was sent and before the receiver has chosen a device. The write then no
// longer uses the message's memory, and the receiver's Read fails.
func TestWriteCancelledBeforeReply(t *testing.T) {
	onPaths(t, pathsOf(pipe.DialectCompatible), func(t *testing.T, client, server *pipe.Pipe) {
		ctx, cancel := cancelled(t)
		m := message(1, nil, []int{100})
		op := client.WriteAsync(ctx, m)
		in, err := server.Next(testContext(t))
		require.NoError(t, err)
		cancel()
		require.ErrorIs(t, op.Wait(testContext(t)), pipe.ErrCancelled)
		overwrite(m)
		require.Error(t, in.Read(testContext(t), pipe.NewAllocation(in.Descriptor())))
	})
}

// TestReadCancelledBeforeItsTurn checks, in the compatible dialect, that a Read that waits for an
// earlier message can be cancelled: it returns the cause, and both messages can still be read.
func TestReadCancelledBeforeItsTurn(t *testing.T) {
	onPaths(t, pathsOf(pipe.DialectCompatible), func(t *testing.T, client, server *pipe.Pipe) {
		first, second := message(1, []int{10}, []int{10}), message(2, []int{20}, []int{20})
		ops := []*pipe.WriteOp{client.WriteAsync(testContext(t), first), client.WriteAsync(testContext(t), second)}
		one, err := server.Next(testContext(t))
		require.NoError(t, err)
		two, err := server.Next(testContext(t))
		require.NoError(t, err)

		ctx, cancel := cancelled(t)
		early := make(chan error, 1)
		go func() { early <- two.Read(ctx, pipe.NewAllocation(two.Descriptor())) }()
		cancel()
		err = <-early
		require.ErrorIs(t, err, errEnough)
		require.NotErrorIs(t, err, pipe.ErrCancelled)

		same(t, first, one.Descriptor(), read(t, one))
		same(t, second, two.Descriptor(), read(t, two))
		for _, op := range ops {
			require.NoError(t, op.Wait(testContext(t)))
		}
	})
}

// TestInlineMemory checks that the memory of inline parts can be reused once Write has returned,
// also while the peer reads more slowly than this end writes.
func TestInlineMemory(t *testing.T) {
	messages := race.Pick(60, 10) // of each form two
	onNativePaths(t, func(t *testing.T, client, server *pipe.Pipe) {
		build := func(i int) *pipe.Message {
			sizes := make([]int, 1+i%5*20) // in more than 64 parts the memory is copied
			for k := range sizes {
				sizes[k] = []int{64 << 10, 10, 20_000, 0, 15_000}[(i+k)%5]
			}
			return message(i, []int{i}, sizes, make([]device.Device, len(sizes))...)
		}
		written := make(chan error, 1)
		go func() {
			for i := range messages {
				m := build(i)
				if err := client.Write(context.Background(), m); err != nil {
					written <- err
					return
				}
				overwrite(m) // the race detector reports a later use
			}
			written <- nil
		}()
		for i := range messages {
			expect(t, server, build(i))
		}
		require.NoError(t, <-written)
	})
}

func overwrite(m *pipe.Message) {
	for _, p := range m.Payloads {
		clear(p.Data)
	}
	for _, t := range m.Tensors {
		p, _ := t.Buffer.Contiguous()
		clear(p)
	}
}
