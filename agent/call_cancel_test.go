package agent_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// lateSender is a channel that keeps the memory of what it sends until the gate opens, also if the
// transfer is aborted.
type lateSender struct {
	channel.Factory
	gate <-chan struct{}
}

type lateSenderChannel struct {
	channel.Channel
	gate <-chan struct{}
}

func (f lateSender) New(ctx context.Context, link channel.Link, role channel.Role) (channel.Channel, error) {
	c, err := f.Factory.New(ctx, link, role)
	return lateSenderChannel{c, f.gate}, err
}

func (c lateSenderChannel) Send(id uint64, src device.Buffer, done func(error)) {
	c.Channel.Send(id, src, func(err error) {
		go func() {
			<-c.gate
			done(err)
		}()
	})
}

// withLateSender makes the worker of c use the in-memory network, with a channel that reports a
// sent tensor as sent only after gate is closed. Until then the memory of the tensor counts as in
// use.
func withLateSender(c *agent.Config, network *mem.Network, gate <-chan struct{}) {
	inMemory(c, network)
	c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
		o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}}
		o.Channels = []pipe.ChannelEntry{{Name: "xth", Factory: lateSender{xth.New(), gate}}}
		return pipe.New(o)
	}
}

// However a call with a future ends, the future is not done while the channel still uses the memory
// of the arguments, and gets the expected error after that.
func TestArgumentsAreFreeWhenTheFutureIsDone(t *testing.T) {
	why := errors.New("had enough")
	kept := agent.NewFunc[*tensor.Tensor, int]("test.kept") // returns when its context ends
	type sent = agent.Future[int]
	for name, c := range map[string]struct {
		fn   agent.Func[*tensor.Tensor, int]
		opts []agent.CallOption
		end  func(t *testing.T, f *sent, cancel context.CancelCauseFunc, caller *agent.Agent)
		want error
	}{
		"replied":  {fn: size},
		"rejected": {fn: agent.NewFunc[*tensor.Tensor, int]("test.unknown"), want: agent.ErrNoFunction},
		"limit": {
			fn: kept, opts: []agent.CallOption{agent.WithTimeout(time.Second)},
			end:  func(*testing.T, *sent, context.CancelCauseFunc, *agent.Agent) { <-time.NewTimer(2 * time.Second).C },
			want: agent.ErrTimeout,
		},
		"context": {
			fn:   kept,
			end:  func(_ *testing.T, _ *sent, cancel context.CancelCauseFunc, _ *agent.Agent) { cancel(why) },
			want: why,
		},
		"cancelled": {
			fn: kept,
			end: func(_ *testing.T, f *sent, _ context.CancelCauseFunc, _ *agent.Agent) {
				go f.Cancel(why)
				go f.Cancel(why) // concurrently
			},
			want: future.ErrCancelled,
		},
		"cancelled retry": {
			fn: kept, opts: []agent.CallOption{agent.WithRetry(agent.Retry{})},
			end:  func(_ *testing.T, f *sent, _ context.CancelCauseFunc, _ *agent.Agent) { go f.Cancel(why) },
			want: future.ErrCancelled,
		},
		"closed": {
			fn:   kept,
			end:  func(_ *testing.T, _ *sent, _ context.CancelCauseFunc, a *agent.Agent) { go a.Close() },
			want: agent.ErrClosed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := make(chan struct{})
				network := mem.NewNetwork()
				group := startGroup(t, 2, func(_ int, config *agent.Config) {
					withLateSender(config, network, gate)
					config.Timeout = agent.NoTimeout
					config.Funcs = agent.Funcs{size.Serve(sizeOf), kept.Serve(func(ctx context.Context, _ *tensor.Tensor) (int, error) {
						<-ctx.Done()
						return 0, ctx.Err()
					})}
				})
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				f := c.fn.Go(ctx, group[0], "worker1", filled(t, 1, manyMore), c.opts...)
				synctest.Wait()
				if c.end != nil {
					require.False(t, f.IsDone())
					c.end(t, f, cancel, group[0])
					synctest.Wait()
				}
				require.False(t, f.IsDone(), "the channel still has the memory")
				close(gate)
				_, err := f.Wait(t.Context())
				require.ErrorIs(t, err, c.want)
			})
		})
	}
}

// The arguments may be overwritten once the future is done, also after the call was cancelled. The
// race detector reports a violation.
func TestArgumentsAreOverwritten(t *testing.T) {
	network := mem.NewNetwork()
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		inMemory(c, network)
		c.Funcs = agent.Funcs{size.Serve(sizeOf)}
	})
	x := filled(t, 1, manyMore)
	for i := range 40 {
		ctx, cancel := context.WithCancel(t.Context())
		f := size.Go(ctx, group[0], "worker1", x)
		switch i % 4 {
		case 0:
			f.Cancel(nil)
		case 1:
			cancel()
		case 2:
			go f.Cancel(nil)
		}
		_, _ = f.Wait(t.Context()) // with or without an error
		cancel()
		require.NoError(t, tensor.Fill(x, float32(i)))
	}
}
