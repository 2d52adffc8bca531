package hostile_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestNativeTargetsCrossAbort checks that the pipe stays open if the peer sends target devices
// while this end aborts the message: neither end violates the protocol then.
func TestNativeTargetsCrossAbort(t *testing.T) {
	inBothNativeRoles(t, targetsCrossAbort)
}

func targetsCrossAbort(t *testing.T, v *victim, open func(testing.TB) *nativeAttack) {
	n := open(t)
	n.exchange()
	enough := errors.New("the user cancelled")
	for i := range 3 {
		ctx, cancel := context.WithCancelCause(t.Context())
		op := n.pipe.WriteAsync(ctx, openMessage())
		cancel(enough)
		require.ErrorIs(t, op.Wait(t.Context()), enough)
		n.nthControl(native.Abort, i+1)
		n.control(native.Control{Kind: native.Targets, Number: uint64(1 + i), Devices: twoCPUs})
		n.syncControl()
		n.exchangeInbound(t)
	}
	require.NoError(t, n.pipe.Write(t.Context(), &pipe.Message{}))
	v.requireHealthy(t)
	n.pipe.Abort(pipe.ErrClosed)
	n.first.Close()
}

// TestNativeTargetsCrossAbortWithinAChannel checks the same as TestNativeTargetsCrossAbort while a
// channel still uses a tensor of the message. The aborted write ends only when the channel has
// released that tensor.
func TestNativeTargetsCrossAbortWithinAChannel(t *testing.T) {
	channels := &delayedChannels{Factory: basic.New(), released: make(chan struct{})}
	v := newVictim(t, func(o *pipe.Options) {
		o.Channels = []pipe.ChannelEntry{{Name: basic.Name, Priority: 1000, Factory: channels}}
	})
	releaseAll := sync.OnceFunc(func() { close(channels.released) })
	t.Cleanup(releaseAll)
	n := dialNative(t, v)
	n.exchangeInbound(t)
	m := openMessage()
	m.Tensors = append(m.Tensors, pipe.Tensor{Buffer: m.Tensors[0].Buffer, TargetDevice: device.CPU()})
	ctx, cancel := context.WithCancelCause(t.Context())
	op := n.pipe.WriteAsync(ctx, m)
	cancel(errors.New("the user cancelled"))
	n.nthControl(native.Abort, 1)
	n.control(native.Control{Kind: native.Targets, Devices: twoCPUs})
	n.syncControl()
	select {
	case <-op.Done():
		require.Fail(t, "the channel still uses a tensor")
	default:
	}
	require.NoError(t, n.pipe.Write(t.Context(), &pipe.Message{}))
	v.requireHealthy(t)
	releaseAll()
	require.ErrorIs(t, op.Wait(t.Context()), pipe.ErrCancelled)
	n.pipe.Abort(pipe.ErrClosed)
	n.first.Close()
	v.requireIdle(t)
	v.requireServing(t)
}

var twoCPUs = []device.Device{device.CPU(), device.CPU()}

// openMessage returns a message of two tensors of 1 MiB without target devices. Both have the same
// memory.
func openMessage() *pipe.Message {
	tensor := pipe.Tensor{Buffer: device.Bytes(make([]byte, 1<<20))}
	return &pipe.Message{Tensors: []pipe.Tensor{tensor, tensor}}
}

// delayedChannels creates channels that delay done until released is closed.
type delayedChannels struct {
	channel.Factory
	released chan struct{}
}

func (f *delayedChannels) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	c, err := f.Factory.New(ctx, link, role)
	if err != nil {
		return nil, err
	}
	return &delayedChannel{Channel: c, released: f.released}, nil
}

type delayedChannel struct {
	channel.Channel
	released chan struct{}
	held     sync.WaitGroup
}

func (c *delayedChannel) Send(id uint64, src device.Buffer, done func(error)) {
	c.held.Add(1)
	c.Channel.Send(id, src, func(err error) {
		go func() {
			defer c.held.Done()
			<-c.released
			done(err)
		}()
	})
}

func (c *delayedChannel) Close(cause error) error {
	defer c.held.Wait()
	return c.Channel.Close(cause)
}
