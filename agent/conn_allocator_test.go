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

// allocatorFailures are ways in which an allocator does not return.
var allocatorFailures = map[string]func(){"panics": func() { panic("allocator") }, "exits": runtime.Goexit}

// panickingAllocator is an allocator that fails while failure is set.
type panickingAllocator struct {
	tensor.Heap
	failure atomic.Pointer[func()]
}

func (a *panickingAllocator) Alloc(n int) (*tensor.Storage, error) {
	if failure := a.failure.Load(); failure != nil {
		(*failure)()
	}
	return a.Heap.Alloc(n)
}

// withPanickingAllocator runs f in subtests with two workers, for small and large tensors of n
// elements and for each way in which an allocator can fail to return. The worker whose rank is at
// has an allocator that fails while f runs. After each run of f it requires that calls succeed
// again on the pipe, and at the end that no call is pending and no time has passed.
func withPanickingAllocator(t *testing.T, at int, f func(t *testing.T, group []*agent.Agent, n int)) {
	for name, n := range map[string]int{"small": 4, "large": 1 << 20} {
		for way, failure := range allocatorFailures {
			t.Run(name+" "+way, func(t *testing.T) {
				a := &panickingAllocator{}
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
						a.failure.Store(&failure)
						f(t, group, n)
						a.failure.Store(nil)
						got, err := size.Call(t.Context(), group[0], "worker1", filled(t, 1, n))
						require.NoError(t, err)
						require.Equal(t, n, got)
						x, err := manyOnes.Call(t.Context(), group[0], "worker1", n)
						require.NoError(t, err)
						require.Equal(t, n, x.Len())
					}
					for _, a := range group {
						require.Empty(t, a.Snapshot().Pending)
						require.NoError(t, a.Close())
					}
					require.Zero(t, time.Since(begun), "nothing waits for a limit")
				})
			})
		}
	}
}

// If the allocator of the called worker panics or ends its goroutine, the call for which it
// allocates fails with ErrPanic.
func TestAllocatorThatFailsARequest(t *testing.T) {
	withPanickingAllocator(t, 1, func(t *testing.T, group []*agent.Agent, n int) {
		_, err := size.Call(t.Context(), group[0], "worker1", filled(t, 1, n))
		require.ErrorIs(t, err, agent.ErrPanic)
		_, err = size.Go(t.Context(), group[0], "worker1", filled(t, 1, n)).Wait(t.Context())
		require.ErrorIs(t, err, agent.ErrPanic)
	})
}

// If the allocator of the caller panics or ends its goroutine for a reply, the call fails with ErrPanic. A
// goroutine that waits for the reply may be ended.
func TestAllocatorThatFailsAReply(t *testing.T) {
	withPanickingAllocator(t, 0, func(t *testing.T, group []*agent.Agent, n int) {
		called := manyOnes.Go(t.Context(), group[0], "worker1", n)
		synctest.Wait()
		_, err := called.Wait(t.Context())
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

// panickingKind is a kind of devices that may panic.
type panickingKind struct {
	*delayed.Kind
	bad atomic.Bool
}

func (k *panickingKind) NewStream(on device.Device) (device.Stream, error) {
	if k.bad.Load() {
		panic("no stream")
	}
	return k.Kind.NewStream(on)
}

// If a device kind panics at either end, a call with a tensor for one of its devices fails with
// ErrPanic. Other calls succeed.
func TestDeviceThatFailsACall(t *testing.T) {
	kinds := []*panickingKind{{Kind: npu.NewKind()}, {Kind: npu.NewKind()}}
	group := startGroup(t, 2, func(rank int, c *agent.Config) {
		c.Funcs = agent.Funcs{plusOne.Serve(addOne), double.Serve(func(_ context.Context, n int) (int, error) { return 2 * n, nil })}
		c.Kinds, c.DeviceMaps = []device.Kind{kinds[rank]}, npus(map[int]int{0: 0, 1: 1})
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
