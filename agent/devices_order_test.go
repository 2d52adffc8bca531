package agent_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// inBubble runs f in a bubble of testing/synctest with two workers that have two devices each and serve funcs. The
// first one has the device map maps to the second one.
func inBubble(t *testing.T, maps map[int]int, funcs agent.Funcs, f func(t *testing.T, a *agent.Agent, kinds []*delayed.Kind), configure ...func(*agent.Config)) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.NewNetwork()
		kinds := []*delayed.Kind{npu.NewKind(), npu.NewKind()}
		group := startGroup(t, 2, func(rank int, c *agent.Config) {
			c.Funcs, c.Kinds, c.Listen = funcs, []device.Kind{kinds[rank]}, []string{"mem://"}
			if rank == 0 {
				c.DeviceMaps = map[string]agent.DeviceMap{"worker1": npus(maps)["worker1"]}
			}
			for _, change := range configure {
				change(c)
			}
			c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
				o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}}
				o.Channels = []pipe.ChannelEntry{{Name: "xth", Factory: xth.New()}, {Name: npu.Name, Priority: 1, Factory: npu.New(kinds[rank], xth.New())}}
				return pipe.New(o)
			}
		})
		for _, k := range kinds {
			t.Cleanup(k.Close)
		}
		f(t, group[0], kinds)
	})
}

// set enqueues work on s that sets all bytes of x, which may be valid on another stream.
func set(t *testing.T, s device.Stream, x *tensor.Tensor, value byte) {
	t.Helper()
	buf, err := x.Buffer()
	require.NoError(t, err)
	require.NoError(t, s.(*delayed.Stream).Launch(func(mem ...[]byte) error {
		for i := range mem[0] {
			mem[0][i] = value
		}
		return nil
	}, buf))
}

// requireBytes requires that all bytes of x are value once the work before on the stream s is done.
func requireBytes(t *testing.T, k *delayed.Kind, x *tensor.Tensor, s device.Stream, value byte) {
	t.Helper()
	buf, err := x.Buffer()
	require.NoError(t, err)
	got := make([]byte, buf.Len())
	require.NoError(t, k.Read(got, buf.WithStream(s)))
	require.NoError(t, s.Synchronize(t.Context()))
	require.Equal(t, bytes.Repeat([]byte{value}, len(got)), got)
}

var echoed = agent.NewFunc[*tensor.Tensor, *tensor.Tensor]("test.echoed")

func same(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) { return x, nil }

// A tensor is sent after the present work of the caller's stream, also if it is valid on another one. Later work on
// both streams does not change the copy.
func TestSendWaitsForStreams(t *testing.T) {
	for name, held := range map[string]int{"of the caller": 0, "of the tensor": 1} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, map[int]int{0: 1}, agent.Funcs{echoed.Serve(same)}, func(t *testing.T, a *agent.Agent, kinds []*delayed.Kind) {
				kind := kinds[0]
				x, own := onDevice(t, kind, 0, 16)
				current, err := kind.NewStream(kind.Devices()[0])
				require.NoError(t, err)
				ctx := device.WithStream(t.Context(), current)
				streams := []*delayed.Stream{current.(*delayed.Stream), own}
				release := streams[held].Hold()
				set(t, streams[held], x, 7)
				f := echoed.Go(ctx, a, "worker1", x)
				synctest.Wait()
				release()
				y, err := f.Wait(ctx)
				require.NoError(t, err)
				requireBytes(t, kind, y, current, 7)
				for _, s := range streams {
					set(t, s, x, 8)
					require.NoError(t, s.Synchronize(t.Context()))
				}
				requireBytes(t, kind, y, current, 7)
			})
		})
	}
}

// The context of a handler has a stream for each device of the worker: those of its arguments, and others. The reply
// waits for their work, also if its tensors are valid on another stream.
func TestStreamsOfHandler(t *testing.T) {
	may := make(chan struct{})
	serve := func(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
		devices := agent.FromContext(ctx).Devices()
		require.Equal(t, []device.Device{npuOrCPU(0), npuOrCPU(1)}, devices)
		buf, err := x.Buffer()
		require.NoError(t, err)
		require.Same(t, buf.Stream(), device.StreamFrom(ctx, x.Device()))
		current := device.StreamFrom(ctx, npuOrCPU(0))
		require.NotNil(t, current)
		require.NotSame(t, buf.Stream(), current)

		// The tensor is valid at once, as far as its buffer shows.
		mem, _ := buf.Memory()
		y, err := tensor.FromBuffer(device.On(x.Device(), mem, nil), tensor.U8, 16)
		require.NoError(t, err)
		s := device.StreamFrom(ctx, x.Device())
		release := s.(*delayed.Stream).Hold()
		set(t, s, y, 9)
		go func() {
			<-may
			release()
		}()
		return y, nil
	}
	inBubble(t, map[int]int{0: 1, 1: 0}, agent.Funcs{echoed.Serve(serve)}, func(t *testing.T, a *agent.Agent, kinds []*delayed.Kind) {
		kind := kinds[0]
		may = make(chan struct{})
		x, mine := onDevice(t, kind, 0, 16)
		ctx := device.WithStream(t.Context(), mine)
		f := echoed.Go(ctx, a, "worker1", x)
		synctest.Wait()
		close(may)
		y, err := f.Wait(ctx)
		require.NoError(t, err)
		requireBytes(t, kind, y, mine, 9)
	})
}

// A request or reply with tensors of a device may be delayed, or sent more than once.
func TestFaultsOfDeviceMessages(t *testing.T) {
	for name, do := range map[string]faulty.Action{"delayed": faulty.Delay(time.Second), "twice": faulty.Duplicate()} {
		t.Run(name, func(t *testing.T) {
			rule := faulty.Rule{Func: echoed.Name(), Kinds: []agent.Kind{agent.KindRequest, agent.KindReply}, First: 2, Do: do}
			faults, err := faulty.New(faulty.Options{Rules: []faulty.Rule{rule}})
			require.NoError(t, err)
			inBubble(t, map[int]int{0: 1}, agent.Funcs{echoed.Serve(same)}, func(t *testing.T, a *agent.Agent, kinds []*delayed.Kind) {
				x, mine := onDevice(t, kinds[0], 0, 16)
				ctx := device.WithStream(t.Context(), mine)
				y, err := echoed.Call(ctx, a, "worker1", x)
				require.NoError(t, err)
				requireBytes(t, kinds[0], y, mine, 5)
				require.Equal(t, 2, faults.Counts()[0].Taken, "the request and the reply")
			}, func(c *agent.Config) { c.FaultHook = faults.Inject })
		})
	}
}

// stuckStream is a stream that cannot wait for others.
type stuckStream struct{ device.Stream }

func (stuckStream) WaitFor(device.Stream) error { return errStuck }

var errStuck = errors.New("the stream is stuck")

// onStuckStream returns a tensor that is valid on a stream that cannot wait.
func onStuckStream(t *testing.T, kind *delayed.Kind) *tensor.Tensor {
	t.Helper()
	x, own := onDevice(t, kind, 0, 16)
	buf, err := x.Buffer()
	require.NoError(t, err)
	x, err = tensor.FromBuffer(buf.WithStream(stuckStream{own}), tensor.U8, 16)
	require.NoError(t, err)
	return x
}

// If the stream of a tensor cannot wait for the copies of a message, so that the memory must not be changed, the call
// fails with the error of the stream, and AfterReply has it if it is a reply. The pipe goes on.
func TestStreamThatCannotWait(t *testing.T) {
	stuckReply := agent.NewFunc[*tensor.Tensor, *tensor.Tensor]("test.stuckReply")
	var replied chan error
	var served *delayed.Kind
	serve := func(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
		return onStuckStream(t, served), agent.AfterReply(ctx, func(err error) { replied <- err })
	}
	inBubble(t, map[int]int{0: 0}, agent.Funcs{echoed.Serve(same), stuckReply.Serve(serve)}, func(t *testing.T, a *agent.Agent, kinds []*delayed.Kind) {
		served = kinds[1]
		replied = make(chan error, 1) // of the bubble
		var failed *future.StreamError
		for range 10 { // the reply may come before the sending has ended
			_, err := echoed.Call(t.Context(), a, "worker1", onStuckStream(t, kinds[0]))
			require.ErrorIs(t, err, errStuck)
			require.ErrorAs(t, err, &failed)
			require.Equal(t, npuOrCPU(0), failed.Device)
			require.NotErrorIs(t, err, agent.ErrUnreachable)
			_, err = echoed.Go(t.Context(), a, "worker1", onStuckStream(t, kinds[0])).Wait(t.Context())
			require.ErrorIs(t, err, errStuck)
		}

		x, mine := onDevice(t, kinds[0], 0, 16)
		y, err := stuckReply.Call(device.WithStream(t.Context(), mine), a, "worker1", x)
		require.NoError(t, err)
		requireBytes(t, kinds[0], y, mine, 5)
		require.ErrorIs(t, <-replied, errStuck)
	})
}

// A function may return a future whose value is computed by work on a stream that its tensors do not show: the reply
// waits for that work.
func TestReplyWaitsForEventsOfFuture(t *testing.T) {
	may := make(chan struct{})
	var kindOf atomic.Pointer[delayed.Kind] // of the worker that serves
	serve := func(ctx context.Context, x *tensor.Tensor) *agent.Future[*tensor.Tensor] {
		f := future.New[*tensor.Tensor]()
		buf, err := x.Buffer()
		require.NoError(t, err)
		mem, _ := buf.Memory()
		y, err := tensor.FromBuffer(device.On(x.Device(), mem, nil), tensor.U8, 16)
		require.NoError(t, err)
		other, err := kindOf.Load().NewStream(x.Device())
		require.NoError(t, err)
		release := other.(*delayed.Stream).Hold()
		set(t, other, y, 9)
		require.NoError(t, f.SetOn(y, other))
		go func() {
			<-may
			release()
		}()
		return f
	}
	inBubble(t, map[int]int{0: 1}, agent.Funcs{echoed.ServeAsync(serve)}, func(t *testing.T, a *agent.Agent, kinds []*delayed.Kind) {
		kindOf.Store(kinds[1])
		kind := kinds[0]
		may = make(chan struct{})
		x, mine := onDevice(t, kind, 0, 16)
		ctx := device.WithStream(t.Context(), mine)
		f := echoed.Go(ctx, a, "worker1", x)
		synctest.Wait()
		close(may)
		y, err := f.Wait(ctx)
		require.NoError(t, err)
		requireBytes(t, kind, y, mine, 9)
	})
}

// countingKind counts the streams that are made.
type countingKind struct {
	*delayed.Kind
	made atomic.Int64
}

func (k *countingKind) NewStream(on device.Device) (device.Stream, error) {
	k.made.Add(1)
	return k.Kind.NewStream(on)
}

// Messages share streams: a thousand calls one after the other make few.
func TestStreamsAreUsedAgain(t *testing.T) {
	kinds := []*countingKind{{Kind: npu.NewKind()}, {Kind: npu.NewKind()}}
	group := startGroup(t, 2, func(rank int, c *agent.Config) {
		c.Funcs, c.Kinds = agent.Funcs{echoed.Serve(same)}, []device.Kind{kinds[rank]}
		c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
			o.Channels = append(tensorpipe.DefaultProfile().Channels, pipe.ChannelEntry{Name: npu.Name, Priority: 1, Factory: npu.New(kinds[rank], basic.New())})
			return tensorpipe.NewContext(o)
		}
		c.DeviceMaps = map[string]agent.DeviceMap{"worker1": {npuOrCPU(0): npuOrCPU(1)}, "worker0": {npuOrCPU(0): npuOrCPU(0)}}
	})
	for _, k := range kinds {
		t.Cleanup(k.Close)
	}
	x, mine := onDevice(t, kinds[0].Kind, 0, 16)
	ctx := device.WithStream(t.Context(), mine)
	for range 1000 {
		y, err := echoed.Call(ctx, group[0], "worker1", x)
		require.NoError(t, err)
		requireBytes(t, kinds[0].Kind, y, mine, 5)
	}
	for _, k := range kinds {
		require.LessOrEqual(t, k.made.Load(), int64(2*32+8), "32 for each of two devices, and those of messages that overlap")
		require.Greater(t, k.made.Load(), int64(16))
	}
}

// Memory that the application has chosen for a result has its own stream: the caller's stream waits for it, too.
func TestStreamsOfChosenMemory(t *testing.T) {
	inBubble(t, map[int]int{0: 1}, agent.Funcs{echoed.Serve(same)}, func(t *testing.T, a *agent.Agent, kinds []*delayed.Kind) {
		x, _ := onDevice(t, kinds[0], 0, 16)
		dst, own := onDevice(t, kinds[0], 0, 16)
		set(t, own, dst, 1)
		current := newStream(t, kinds[0], 0)
		release := own.Hold()
		ctx := device.WithStream(t.Context(), current)
		_, err := echoed.Go(ctx, a, "worker1", x, agent.WithInto(dst)).Wait(ctx)
		require.NoError(t, err)
		requireAfter(t, kinds[0], dst, current, 5, release)
	})
}

// A function receives arguments into memory that it has chosen: the stream of its context waits for the stream of that.
func TestStreamsOfChosenArguments(t *testing.T) {
	var dst *tensor.Tensor
	var own *delayed.Stream
	var release func()
	var kind *delayed.Kind
	place := func(context.Context, *agent.Message, []agent.TensorInfo) ([]*tensor.Tensor, error) {
		dst, own = onDevice(t, kind, 1, 16)
		set(t, own, dst, 1)
		release = own.Hold()
		return []*tensor.Tensor{dst}, nil
	}
	checked := make(chan error, 1)
	serve := func(ctx context.Context, x *tensor.Tensor) (*tensor.Tensor, error) {
		current := device.StreamFrom(ctx, x.Device())
		buf, err := x.Buffer()
		require.NoError(t, err)
		got := make([]byte, 16)
		require.NoError(t, kind.Read(got, buf.WithStream(current)))
		go func() {
			pass(time.Second) // a stream that does not wait has read
			release()
			checked <- current.Synchronize(context.Background())
		}()
		require.NoError(t, <-checked)
		require.Equal(t, bytes.Repeat([]byte{5}, 16), got)
		return nil, nil
	}
	inBubble(t, map[int]int{0: 1}, agent.Funcs{echoed.Serve(serve, agent.WithArgsInto(place))}, func(t *testing.T, a *agent.Agent, kinds []*delayed.Kind) {
		kind, checked = kinds[1], make(chan error, 1)
		x, mine := onDevice(t, kinds[0], 0, 16)
		_, err := echoed.Call(device.WithStream(t.Context(), mine), a, "worker1", x)
		require.NoError(t, err)
	})
}

// Sparse tensors move between devices like others. Nothing reads their indices, which may not be there yet.
func TestSparseTensorsOnDevices(t *testing.T) {
	sparse := agent.NewFunc[*tensor.Sparse, *tensor.Sparse]("test.sparse")
	serve := func(_ context.Context, x *tensor.Sparse) (*tensor.Sparse, error) {
		require.Equal(t, npuOrCPU(1), x.Indices().Device())
		require.Equal(t, npuOrCPU(1), x.Values().Device())
		return x, nil
	}
	inBubble(t, map[int]int{0: 1}, agent.Funcs{sparse.Serve(serve)}, func(t *testing.T, a *agent.Agent, kinds []*delayed.Kind) {
		view := func(d tensor.DType, n int, dims ...int) (*tensor.Tensor, *delayed.Stream) {
			x, s := onDevice(t, kinds[0], 0, n)
			buf, err := x.Buffer()
			require.NoError(t, err)
			x, err = tensor.FromBuffer(buf, d, dims...)
			require.NoError(t, err)
			return x, s
		}
		indices, late := view(tensor.I64, 16, 1, 2)
		values, own := view(tensor.F32, 8, 2)
		release := late.Hold()
		set(t, late, indices, 0)
		x, err := tensor.NewSparse(indices, values, 9)
		require.NoError(t, err)
		ctx := device.WithStream(t.Context(), own)
		f := sparse.Go(ctx, a, "worker1", x)
		synctest.Wait()
		release()
		y, err := f.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, npuOrCPU(0), y.Device())
		requireBytes(t, kinds[0], y.Indices(), own, 0)
		requireBytes(t, kinds[0], y.Values(), own, 5)

		g, err := agent.NewFuture[*tensor.Sparse](a)
		require.NoError(t, err)
		another := newStream(t, kinds[0], 0)
		release = own.Hold()
		set(t, own, values, 1)
		require.NoError(t, g.SetFrom(t.Context(), x))
		_, err = g.Wait(device.WithStream(t.Context(), another))
		require.NoError(t, err)
		requireAfter(t, kinds[0], values, another, 1, release)
	})
}
