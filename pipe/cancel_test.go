package pipe_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

var errEnough = errors.New("enough")

// cancelled returns a context and the function that ends it with errEnough.
func cancelled(t *testing.T) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(testContext(t))
	return ctx, func() { cancel(errEnough) }
}

// clog writes a message whose payload stays on its way until the other end
// gives memory for it, so that whatever is written behind it waits in line.
func clog(t *testing.T, ctx context.Context, client, server *pipe.Pipe) (*pipe.WriteOp, *pipe.Message, *pipe.Incoming) {
	m := message(99, []int{32 << 20}, nil)
	op := client.WriteAsync(ctx, m)
	in, err := server.Next(testContext(t))
	require.NoError(t, err)
	return op, m, in
}

func TestWriteIsWithdrawnBeforeItsFirstByte(t *testing.T) {
	onPaths(t, pathsOf(pipe.DialectCompatible), func(t *testing.T, client, server *pipe.Pipe) {
		first, clogged, in := clog(t, testContext(t), client, server)
		ctx, cancel := cancelled(t)
		second := client.WriteAsync(ctx, message(2, []int{1}, []int{1}))
		third := client.WriteAsync(testContext(t), message(3, []int{1}, []int{1}, device.CPU()))
		cancel()
		err := second.Wait(testContext(t))
		require.ErrorIs(t, err, errEnough)
		require.NotErrorIs(t, err, pipe.ErrCancelled)

		same(t, clogged, in.Descriptor(), read(t, in))
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

// Later than its first byte a cancelled write takes the pipe down. Its own
// error has the cause; those of other calls name what happened.
func TestWriteCancelledInTheMiddle(t *testing.T) {
	onPaths(t, pathsOf(pipe.DialectCompatible), func(t *testing.T, client, server *pipe.Pipe) {
		ctx, cancel := cancelled(t)
		op, m, _ := clog(t, ctx, client, server)
		behind := client.WriteAsync(testContext(t), message(2, nil, nil))
		cancel()
		err := op.Wait(testContext(t))
		require.ErrorIs(t, err, errEnough)
		require.ErrorIs(t, err, pipe.ErrCancelled)
		scribble(m) // the race detector sees whoever still reads it

		err = behind.Wait(testContext(t))
		require.ErrorIs(t, err, pipe.ErrCancelled)
		require.NotErrorIs(t, err, errEnough)
		_, err = client.Next(testContext(t))
		require.ErrorIs(t, err, pipe.ErrCancelled)
	})
}

// The descriptor has left; the receiver has not named its device yet.
func TestWriteCancelledWhileItWaitsForTheReply(t *testing.T) {
	onPaths(t, pathsOf(pipe.DialectCompatible), func(t *testing.T, client, server *pipe.Pipe) {
		ctx, cancel := cancelled(t)
		m := message(1, nil, []int{100})
		op := client.WriteAsync(ctx, m)
		in, err := server.Next(testContext(t))
		require.NoError(t, err)
		cancel()
		require.ErrorIs(t, op.Wait(testContext(t)), pipe.ErrCancelled)
		scribble(m)
		require.Error(t, in.Read(testContext(t), pipe.NewAllocation(in.Descriptor())))
	})
}

// Native reads have no turn to wait for.
func TestReadIsWithdrawnBeforeItsTurn(t *testing.T) {
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

func scribble(m *pipe.Message) {
	for _, p := range m.Payloads {
		clear(p.Data)
	}
	for _, t := range m.Tensors {
		p, _ := t.Buffer.Contiguous()
		clear(p)
	}
}
