package agent_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest/npu"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/device/delayed"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// ways in which an allocator does not return.
var ways = map[string]func(){"panics": func() { panic("allocator") }, "exits": runtime.Goexit}

// treacherous is an allocator that may have a mishap.
type treacherous struct {
	tensor.Heap
	mishap atomic.Pointer[func()]
}

func (a *treacherous) Alloc(n int) (*tensor.Storage, error) {
	if mishap := a.mishap.Load(); mishap != nil {
		(*mishap)()
	}
	return a.Heap.Alloc(n)
}

// withMishaps runs f in groups of two of which one has such an allocator, with tensors of
// some sizes.
func withMishaps(t *testing.T, at int, f func(t *testing.T, group []*agent.Agent, n int)) {
	for name, n := range map[string]int{"small": 4, "large": 1 << 20} {
		for way, mishap := range ways {
			t.Run(name+" "+way, func(t *testing.T) {
				a := &treacherous{}
				configure := func(rank int, c *agent.Config) {
					if rank == at {
						c.Allocator = a
					}
					c.Funcs = agent.Funcs{size.Serve(sizeOf), manyOnes.Serve(func(_ context.Context, n int) (*tensor.Tensor, error) {
						return tensor.Zeros(tensor.F32, n)
					})}
				}
				simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
					begun := time.Now()
					for range 3 {
						a.mishap.Store(&mishap)
						f(t, group, n)
						a.mishap.Store(nil)
						got, err := size.Call(t.Context(), group[0], "worker1", filled(t, 1, n))
						require.NoError(t, err)
						require.Equal(t, n, got)
						x, err := manyOnes.Call(t.Context(), group[0], "worker1", n)
						require.NoError(t, err)
						require.Equal(t, n, x.Len())
					}
					for _, a := range group {
						require.Empty(t, a.PendingCalls())
						require.NoError(t, a.Close())
					}
					require.Zero(t, time.Since(begun), "nothing is waited for in vain")
				})
			})
		}
	}
}

// An allocator that does not return fails the request that it was to make memory for.
func TestAllocatorThatFailsARequest(t *testing.T) {
	withMishaps(t, 1, func(t *testing.T, group []*agent.Agent, n int) {
		_, err := size.Call(t.Context(), group[0], "worker1", filled(t, 1, n))
		require.ErrorIs(t, err, agent.ErrPanic)
		_, err = size.Go(t.Context(), group[0], "worker1", filled(t, 1, n)).Wait(t.Context())
		require.ErrorIs(t, err, agent.ErrPanic)
	})
}

// One that does not return for an answer fails that call, or ends who makes it.
func TestAllocatorThatFailsAnAnswer(t *testing.T) {
	withMishaps(t, 0, func(t *testing.T, group []*agent.Agent, n int) {
		_, err := manyOnes.Go(t.Context(), group[0], "worker1", n).Wait(t.Context())
		require.ErrorIs(t, err, agent.ErrPanic)
		var e *agent.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "worker1", e.Worker)

		ended := make(chan error, 1)
		go func() {
			err := error(&agent.PanicError{Value: "runtime.Goexit"})
			defer func() { ended <- err }()
			_, err = manyOnes.Call(t.Context(), group[0], "worker1", n)
		}()
		require.ErrorIs(t, <-ended, agent.ErrPanic)
		synctest.Wait()
	})
}

// badKind is a kind of devices on which nothing can be made.
type badKind struct {
	*delayed.Kind
	bad atomic.Bool
}

func (k *badKind) NewStream(on device.Device) (device.Stream, error) {
	if k.bad.Load() {
		panic("no stream")
	}
	return k.Kind.NewStream(on)
}

// So does a kind of devices that panics where a tensor is to go to one of them.
func TestDeviceThatFailsACall(t *testing.T) {
	kinds := []*badKind{{Kind: npu.NewKind()}, {Kind: npu.NewKind()}}
	group := startGroup(t, 2, func(rank int, c *agent.Config) {
		c.Funcs = agent.Funcs{plusOne.Serve(addOne), double.Serve(func(_ context.Context, n int) (int, error) { return 2 * n, nil })}
		c.Kinds, c.DeviceMap = []device.Kind{kinds[rank]}, npus(map[int]int{0: 0, 1: 1})
		c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
			o.Channels = append(tensorpipe.DefaultProfile().Channels, pipe.ChannelEntry{Name: npu.Name, Priority: 1, Factory: npu.New(kinds[rank].Kind, basic.New())})
			return tensorpipe.NewContext(o)
		}
	})
	for _, k := range kinds {
		t.Cleanup(k.Close)
	}
	x, _ := onDevice(t, kinds[0].Kind, 0, 16)
	for _, k := range kinds {
		k.bad.Store(true)
		_, err := plusOne.Go(t.Context(), group[0], "worker1", x).Wait(t.Context())
		require.ErrorIs(t, err, agent.ErrPanic)
		require.ErrorContains(t, err, "no stream")
		k.bad.Store(false)
		got, err := double.Call(t.Context(), group[0], "worker1", 2)
		require.NoError(t, err)
		require.Equal(t, 4, got)
	}
	_, err := plusOne.Call(t.Context(), group[0], "worker1", x)
	require.NoError(t, err)
}
