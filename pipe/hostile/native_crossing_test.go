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

// The peer chooses devices while this end gives the message up: the two cross,
// and nobody is to blame.
func TestNativeTargetsCrossAbort(t *testing.T) {
	inBothNativeRoles(t, targetsCrossAbort)
}

func targetsCrossAbort(t *testing.T, v *victim, open func(testing.TB) *intruder) {
	n := open(t)
	n.exchange()
	enough := errors.New("the user went home")
	for i := range 3 {
		ctx, cancel := context.WithCancelCause(t.Context())
		op := n.pipe.WriteAsync(ctx, openMessage())
		cancel(enough)
		require.ErrorIs(t, op.Wait(t.Context()), enough)
		n.awaitControl(native.Abort, i+1)
		n.control(native.Control{Kind: native.Targets, Number: uint64(1 + i), Devices: twoCPUs})
		n.obeyed()
		n.exchangeInbound(t)
	}
	require.NoError(t, n.pipe.Write(t.Context(), &pipe.Message{}))
	v.unharmed(t)
	n.pipe.Abort(pipe.ErrClosed)
	n.first.Close()
}

// The same while a channel still has a part of the message.
func TestNativeTargetsCrossAbortWithinAChannel(t *testing.T) {
	channels := &clinging{Factory: basic.New(), may: make(chan struct{})}
	v := newVictim(t, func(o *pipe.Options) {
		o.Channels = []pipe.ChannelEntry{{Name: basic.Name, Priority: 1000, Factory: channels}}
	})
	letGo := sync.OnceFunc(func() { close(channels.may) })
	t.Cleanup(letGo)
	n := dialNatively(t, v)
	n.exchangeInbound(t)
	m := openMessage()
	m.Tensors = append(m.Tensors, pipe.Tensor{Buffer: m.Tensors[0].Buffer, TargetDevice: device.CPU()})
	ctx, cancel := context.WithCancelCause(t.Context())
	op := n.pipe.WriteAsync(ctx, m)
	cancel(errors.New("the user went home"))
	n.awaitControl(native.Abort, 1)
	n.control(native.Control{Kind: native.Targets, Devices: twoCPUs})
	n.obeyed()
	select {
	case <-op.Done():
		require.Fail(t, "the channel still has a tensor")
	default:
	}
	require.NoError(t, n.pipe.Write(t.Context(), &pipe.Message{}))
	v.unharmed(t)
	letGo()
	require.ErrorIs(t, op.Wait(t.Context()), pipe.ErrCancelled)
	n.pipe.Abort(pipe.ErrClosed)
	n.first.Close()
	v.quiet(t)
	v.alive(t)
}

var twoCPUs = []device.Device{device.CPU(), device.CPU()}

// openMessage has two large tensors that leave their targets open.
func openMessage() *pipe.Message {
	tensor := pipe.Tensor{Buffer: device.Bytes(make([]byte, 1<<20))}
	return &pipe.Message{Tensors: []pipe.Tensor{tensor, tensor}}
}

// clinging makes channels that let go of memory only when they may.
type clinging struct {
	channel.Factory
	may chan struct{}
}

func (f *clinging) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	c, err := f.Factory.New(ctx, link, role)
	if err != nil {
		return nil, err
	}
	return &clingingChannel{Channel: c, may: f.may}, nil
}

type clingingChannel struct {
	channel.Channel
	may  chan struct{}
	held sync.WaitGroup
}

func (c *clingingChannel) Send(id uint64, src device.Buffer, done func(error)) {
	c.held.Add(1)
	c.Channel.Send(id, src, func(err error) {
		go func() {
			defer c.held.Done()
			<-c.may
			done(err)
		}()
	})
}

func (c *clingingChannel) Close(cause error) error {
	defer c.held.Wait()
	return c.Channel.Close(cause)
}
