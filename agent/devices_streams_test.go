package agent_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// delayedKind returns a device kind with two devices whose first copy blocks until releaseCopies is
// called. releaseCopies may be called several times.
func delayedKind() (kind *delayed.Kind, releaseCopies func()) {
	may := make(chan struct{})
	var begun atomic.Bool
	return delayed.New(npu.Name, 2, delayed.WithDelay(func() {
		if !begun.Swap(true) {
			<-may
		}
	})), sync.OnceFunc(func() { close(may) })
}

// withDelayedDevice runs f in a bubble of testing/synctest with the first of two workers, a. The
// device of a, of the given kind, receives no tensor until releaseCopies is called. If fail is
// true, sending the first request of a fails.
func withDelayedDevice(t *testing.T, fail bool, f func(t *testing.T, a *agent.Agent, kind *delayed.Kind, releaseCopies func())) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.NewNetwork()
		late, releaseCopies := delayedKind()
		kinds := []*delayed.Kind{late, npu.NewKind()}
		var rules []faulty.Rule
		if fail {
			rules = []faulty.Rule{{Func: made.Name(), First: 1, Do: faulty.Fail(nil)}}
		}
		faults, err := faulty.New(faulty.Options{Rules: rules})
		require.NoError(t, err)
		group := startGroup(t, 2, func(rank int, c *agent.Config) {
			c.Funcs = agent.Funcs{made.Serve(func(ctx context.Context, on int) (*tensor.Tensor, error) {
				x, _ := onDevice(t, kinds[rank], on, 16)
				return addOne(ctx, x)
			})}
			c.Kinds, c.DeviceMaps = []device.Kind{kinds[rank]}, npus(map[int]int{0: 1})
			if rank == 0 {
				c.FaultHook = faults.Inject // only of requests, since it is not called
			}
			c.Listen = []string{"mem://"}
			c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
				o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}}
				o.Channels = []pipe.ChannelEntry{{Name: "xth", Factory: xth.New()}, {Name: npu.Name, Priority: 1, Factory: npu.New(kinds[rank], xth.New())}}
				return pipe.New(o)
			}
		})
		for _, k := range kinds {
			t.Cleanup(k.Close)
		}
		t.Cleanup(releaseCopies)
		f(t, group[0], late, releaseCopies)
	})
}

// However a call is made, the caller's device stream waits for the device work that computes the
// result, and the call returns without waiting for that work.
func TestStreamsWaitForResults(t *testing.T) {
	later := func(wait func(ctx context.Context, f *agent.Future[*tensor.Tensor], s device.Stream) (*tensor.Tensor, error)) func(context.Context, *agent.Agent, device.Stream, ...agent.CallOption) (*tensor.Tensor, error) {
		return func(ctx context.Context, a *agent.Agent, s device.Stream, opts ...agent.CallOption) (*tensor.Tensor, error) {
			return wait(ctx, made.Go(ctx, a, "worker1", 1, opts...), s)
		}
	}
	for name, get := range map[string]func(context.Context, *agent.Agent, device.Stream, ...agent.CallOption) (*tensor.Tensor, error){
		"call": func(ctx context.Context, a *agent.Agent, s device.Stream, opts ...agent.CallOption) (*tensor.Tensor, error) {
			return made.Call(device.WithStream(ctx, s), a, "worker1", 1, opts...)
		},
		"wait": later(func(ctx context.Context, f *agent.Future[*tensor.Tensor], s device.Stream) (*tensor.Tensor, error) {
			return f.Wait(device.WithStream(ctx, s))
		}),
		"order": later(func(ctx context.Context, f *agent.Future[*tensor.Tensor], s device.Stream) (*tensor.Tensor, error) {
			x, err := f.Wait(ctx)
			if err != nil {
				return nil, err
			}
			return x, f.Order(s)
		}),
	} {
		for again, opts := range map[string][]agent.CallOption{"": nil, ", made again": {agent.WithRetry(agent.Retry{})}} {
			t.Run(name+again, func(t *testing.T) {
				withDelayedDevice(t, opts != nil, func(t *testing.T, a *agent.Agent, kind *delayed.Kind, releaseCopies func()) {
					mine, err := kind.NewStream(kind.Devices()[0])
					require.NoError(t, err)
					results := make(chan *tensor.Tensor, 1)
					go func() {
						x, err := get(t.Context(), a, mine, opts...)
						assert.NoError(t, err)
						results <- x
					}()
					pass(time.Minute)
					require.Len(t, results, 1, "the host does not wait")
					x := <-results
					require.NotNil(t, x)
					behind, err := mine.Record()
					require.NoError(t, err)
					synctest.Wait()
					over, err := behind.Done()
					require.NoError(t, err)
					require.False(t, over, "the stream waits")
					releaseCopies()
					requireSix(t, kind, x, mine)
				})
			})
		}
	}
}

// streamObserver reports whether the contexts of its tasks have a stream of the first device.
type streamObserver struct{ found chan bool }

func (h streamObserver) Open(*agent.Request) (agent.Task, error) { return h, nil }
func (h streamObserver) Run(ctx context.Context, r *agent.Request) {
	h.found <- device.StreamFrom(ctx, npuOrCPU(0)) != nil
	_ = r.Reply(&agent.None{})
}

// onHost is a streamObserver that needs none.
type onHost struct{ streamObserver }

// HostOnly implements agent.HostHandler.
func (onHost) HostOnly() {}

// The contexts of a HostHandler have no streams, those of other handlers of messages do.
func TestStreamsOfHostHandler(t *testing.T) {
	var h streamObserver
	inBubble(t, map[int]int{0: 0}, nil, func(t *testing.T, a *agent.Agent, _ []*delayed.Kind) {
		for typ, want := range map[string]bool{"any": true, "host": false} {
			_, err := agent.NewMessageType[agent.None, agent.None](typ).Call(t.Context(), a, "worker1", "", agent.None{})
			require.NoError(t, err)
			require.Equal(t, want, <-h.found, typ)
		}
	}, func(c *agent.Config) {
		if h.found == nil { // in the bubble
			h.found = make(chan bool, 1)
		}
		c.Handlers = map[string]agent.Handler{"any": h, "host": onHost{h}}
	})
}
