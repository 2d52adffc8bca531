package agent_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

var (
	stall = agent.NewFunc[int, int]("test.stall")
	size  = agent.NewFunc[*tensor.Tensor, int]("test.size")
)

func sizeOf(_ context.Context, x *tensor.Tensor) (int, error) { return x.Len(), nil }

// limitInFlight bounds the bytes that each pipe of the worker of c may have in flight, whatever
// pipe context c.NewContext makes.
func limitInFlight(c *agent.Config, bytes int) {
	newContext := c.NewContext
	if newContext == nil {
		newContext = tensorpipe.NewContext
	}
	c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
		o.Limits.PipeBytesInFlight = bytes
		return newContext(o)
	}
}

const (
	inFlight = 1 << 20
	manyMore = inFlight // of float32: more than the pipe admits, unless nothing else is in flight
)

// The read loops of both ends go on, and all calls succeed, although both pipes are full of unread
// messages when both ends send small replies.
func TestReadersDoNotWaitForEachOther(t *testing.T) {
	var proceed chan struct{}
	configure := func(rank int, c *agent.Config) {
		if rank == 0 {
			proceed = make(chan struct{})
		}
		limitInFlight(c, inFlight)
		c.Timeout = agent.NoTimeout
		c.Funcs = agent.Funcs{
			stall.Serve(func(_ context.Context, n int) (int, error) { <-proceed; return n, nil }, agent.WithShort()),
			size.Serve(sizeOf),
		}
	}
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		var small, large []*agent.Future[int]
		for rank, a := range group {
			small = append(small, stall.Go(t.Context(), a, agent.Rank(1-rank), rank))
		}
		synctest.Wait() // both read loops run a function
		for rank, a := range group {
			large = append(large, size.Go(t.Context(), a, agent.Rank(1-rank), filled(t, 1, manyMore)))
		}
		synctest.Wait() // both pipes are full
		close(proceed)
		for rank := range group {
			n, err := small[rank].Wait(t.Context())
			require.NoError(t, err)
			require.Equal(t, rank, n)
			n, err = large[rank].Wait(t.Context())
			require.NoError(t, err)
			require.Equal(t, manyMore, n)
		}
	})
}

// Many large and small calls at once succeed in both directions, on pipes that admit few bytes in
// flight.
func TestFloodBothWays(t *testing.T) {
	short.Skip(t, "a flood of calls")
	rounds := 30
	if race.Enabled {
		rounds = 5
	}
	for name, listen := range map[string][]string{"any": nil, "uv": {"uv://127.0.0.1:0"}} {
		t.Run(name, func(t *testing.T) {
			group := startGroup(t, 2, func(_ int, c *agent.Config) {
				limitInFlight(c, inFlight)
				c.Listen = listen
				c.Timeout = agent.NoTimeout
				c.Funcs = agent.Funcs{
					echo.Serve(func(_ context.Context, n int) (int, error) { return n, nil }, agent.WithShort()),
					size.Serve(sizeOf, agent.WithShort()),
				}
			})
			calls, outcomes := flood(t, group, rounds)
			for range calls {
				require.NoError(t, testwait.Finish(t, outcomes))
			}
		})
	}
}

// flood begins many large and small calls between the two workers of group, in both directions, and
// returns without waiting. outcomes receives the outcome of each of the calls, nil for the expected
// result.
func flood(t *testing.T, group []*agent.Agent, rounds int) (calls int, outcomes <-chan error) {
	const callers, small = 4, 20 // of small calls, for each large one
	calls = len(group) * callers * (1 + small) * rounds
	all := make(chan error, calls)
	check := func(want, n int, err error) {
		if err == nil && n != want {
			err = fmt.Errorf("got %d for %d", n, want)
		}
		all <- err
	}
	for rank, a := range group {
		to := agent.Rank(1 - rank)
		for range callers {
			x := filled(t, 1, manyMore)
			go func() {
				for range rounds {
					n, err := size.Go(t.Context(), a, to, x).Wait(t.Context())
					check(manyMore, n, err)
				}
			}()
			go func() {
				for i := range small * rounds {
					n, err := echo.Call(t.Context(), a, to, i)
					check(i, n, err)
				}
			}()
		}
	}
	return calls, all
}

// fillPipe fills the pipe from the second worker to the first with large calls, for which the first
// worker has memory only after the gate of fillable has opened. It returns the futures of these
// calls without waiting for them. It must be called in a bubble of testing/synctest.
func fillPipe(t *testing.T, group []*agent.Agent) []*agent.Future[agent.None] {
	var filling []*agent.Future[agent.None]
	for range 2 {
		filling = append(filling, blocked.Go(t.Context(), group[1], "worker0", filled(t, 1, manyMore)))
		synctest.Wait()
	}
	return filling
}

// fillable returns a configure function for simulate that prepares workers for fillPipe and makes
// them serve funcs, too. It sets *g to a new gate for the handler that the calls of fillPipe run,
// within the bubble of the test.
func fillable(g *gate, funcs func() agent.Funcs) func(int, *agent.Config) {
	return func(rank int, c *agent.Config) {
		if rank == 0 {
			*g = newGate()
		}
		limitInFlight(c, inFlight)
		c.Limits.LargeBytes = inFlight
		c.Timeout = agent.NoTimeout
		c.Funcs = append(funcs(), blocked.Serve(g.serve))
	}
}

// While a reply waits for space in the pipe, no further handler starts; its request is queued.
// Cancellations are still read, and all calls succeed once there is space.
func TestRequestsWaitForUnsentReplies(t *testing.T) {
	const calls = 10
	for name, opts := range map[string][]agent.ServeOption{"short": {agent.WithShort()}, "plain": nil} {
		t.Run(name, func(t *testing.T) {
			var g gate
			h := &hanging{}
			var ran atomic.Int64
			configure := fillable(&g, func() agent.Funcs {
				var c agent.Config
				h.serve(0, &c)
				return append(c.Funcs, echo.Serve(func(_ context.Context, n int) (int, error) { ran.Add(1); return n, nil }, opts...))
			})
			simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
				ctx, cancel := context.WithCancel(t.Context())
				cancelled := hang.Go(ctx, group[0], "worker1", agent.None{})
				filling := fillPipe(t, group)
				var futures []*agent.Future[int]
				for i := range calls {
					futures = append(futures, echo.Go(t.Context(), group[0], "worker1", i))
					synctest.Wait()
				}
				require.EqualValues(t, 1, ran.Load(), "its reply is unsent, and the other requests are queued")
				require.Equal(t, calls-1, queued(group[1]))
				cancel()
				require.ErrorIs(t, (<-h.ended).cause, agent.ErrCallerGone, "the cancellation is read")
				require.Error(t, cancelled.Err())

				close(g.proceed)
				for i, f := range futures {
					n, err := f.Wait(t.Context())
					require.NoError(t, err)
					require.Equal(t, i, n)
				}
				for _, f := range filling {
					_, err := f.Wait(t.Context())
					require.NoError(t, err)
				}
				require.EqualValues(t, calls, ran.Load())
			})
		})
	}
}

// A small call for which the pipe has no space ends at its limit. Cancelling another call returns
// at once, and its cancellation is sent when there is space.
func TestTimeoutInAFullPipe(t *testing.T) {
	var g gate
	h := &hanging{}
	configure := fillable(&g, func() agent.Funcs {
		var c agent.Config
		h.serve(0, &c)
		return c.Funcs
	})
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		ctx, cancel := context.WithCancel(t.Context())
		inProgress := testwait.Start(func() error {
			_, err := hang.Call(ctx, group[1], "worker0", agent.None{})
			return err
		})
		synctest.Wait()
		filling := fillPipe(t, group)
		begun := time.Now()
		_, err := hang.Call(t.Context(), group[1], "worker0", agent.None{}, agent.WithTimeout(3*time.Second))
		require.ErrorIs(t, err, agent.ErrTimeout)
		require.Equal(t, 3*time.Second, time.Since(begun))
		cancel()
		require.ErrorIs(t, <-inProgress, context.Canceled)
		require.Equal(t, 3*time.Second, time.Since(begun))
		require.Empty(t, h.ended, "the cancellation is not sent yet")
		close(g.proceed)
		for _, f := range filling {
			_, err := f.Wait(t.Context())
			require.NoError(t, err)
		}
		require.ErrorIs(t, (<-h.ended).cause, agent.ErrCallerGone)
	})
}

// Large calls in both directions that wait for memory at the other end fill both pipes.
// Nevertheless the replies that free the memory are sent, and all calls succeed.
func TestRepliesPassCallsThatWaitForMemory(t *testing.T) {
	var g gate
	simulate(t, 2, fillable(&g, func() agent.Funcs { return nil }), func(t *testing.T, group []*agent.Agent) {
		var all []*agent.Future[agent.None]
		for range 5 {
			for rank, a := range group {
				all = append(all, blocked.Go(t.Context(), a, agent.Rank(1-rank), filled(t, 1, manyMore)))
			}
		}
		synctest.Wait()
		close(g.proceed)
		for _, f := range all {
			_, err := f.Wait(t.Context())
			require.NoError(t, err)
		}
	})
}

// queued returns how many requests at a wait for a handler slot or for unsent replies.
func queued(a *agent.Agent) (n int) {
	for _, c := range a.Snapshot().Served {
		if c.State == agent.ServedQueued {
			n++
		}
	}
	return n
}

// Rejections wait for unsent replies, however many rejections there are: the caller does not lose
// its pipe, and gets them all.
func TestRejectionsWaitForUnsentReplies(t *testing.T) {
	var g gate
	const calls = 5000
	unknown := agent.NewFunc[agent.None, agent.None]("test.unknown")
	simulate(t, 2, fillable(&g, func() agent.Funcs { return nil }), func(t *testing.T, group []*agent.Agent) {
		filling := fillPipe(t, group)
		var rejected []*agent.Future[agent.None]
		for range calls {
			rejected = append(rejected, unknown.Go(t.Context(), group[0], "worker1", agent.None{}))
		}
		synctest.Wait()
		require.Equal(t, calls-1, queued(group[1]), "until the first reply is sent")
		close(g.proceed)
		for _, f := range rejected {
			_, err := f.Wait(t.Context())
			require.ErrorIs(t, err, agent.ErrNoFunction)
		}
		for _, f := range filling {
			_, err := f.Wait(t.Context())
			require.NoError(t, err)
		}
	})
}

// Repeated requests that get a kept reply are queued while another reply is unsent, and get it
// later. The function runs once.
func TestKeptRepliesWaitForUnsentReplies(t *testing.T) {
	var g gate
	const calls = 10
	for name, opts := range map[string][]agent.ServeOption{"short": {agent.WithOnce(), agent.WithShort()}, "plain": {agent.WithOnce()}} {
		t.Run(name, func(t *testing.T) {
			var ran atomic.Int64
			configure := fillable(&g, func() agent.Funcs {
				return agent.Funcs{echo.Serve(func(_ context.Context, n int) (int, error) { ran.Add(1); return n, nil }, opts...)}
			})
			simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
				begin := func() *agent.Future[int] {
					return echo.Go(t.Context(), group[0], "worker1", 7, agent.WithIdempotencyKey("key"))
				}
				again := []*agent.Future[int]{begin()}
				_, err := again[0].Wait(t.Context())
				require.NoError(t, err)
				filling := fillPipe(t, group)
				for range calls {
					again = append(again, begin())
					synctest.Wait()
				}
				require.Equal(t, calls-1, queued(group[1]))
				close(g.proceed)
				for _, f := range again {
					n, err := f.Wait(t.Context())
					require.NoError(t, err)
					require.Equal(t, 7, n)
				}
				for _, f := range filling {
					_, err := f.Wait(t.Context())
					require.NoError(t, err)
				}
				require.EqualValues(t, 1, ran.Load())
			})
		})
	}
}

// blockingAllocator allocates nothing until it is released: a worker with it reads no large
// tensors.
type blockingAllocator struct {
	tensor.Heap
	release chan struct{}
}

func (w *blockingAllocator) Alloc(size int) (*tensor.Storage, error) {
	<-w.release
	return w.Heap.Alloc(size)
}

// zeroBytes returns a tensor of that many bytes.
var zeroBytes = agent.NewFunc[int, *tensor.Tensor]("test.ample")

// withBlockedReader returns a configure function for simulate. The worker of rank 0 uses memory as
// its allocator and reads no large tensor until memory.release, which is set here, is closed. All
// workers serve zeroBytes and size with opts in one handler slot, and may have 4 MiB of unsent
// replies. ran counts the runs of zeroBytes.
func withBlockedReader(memory *blockingAllocator, ran *atomic.Int64, opts []agent.ServeOption) func(int, *agent.Config) {
	return func(rank int, c *agent.Config) {
		if rank == 0 {
			memory.release = make(chan struct{})
			c.Allocator = memory
		}
		c.MaxHandlers, c.Timeout = 1, agent.NoTimeout
		c.Limits.AnswerBytes = 4 << 20
		c.Funcs = agent.Funcs{
			zeroBytes.Serve(func(_ context.Context, n int) (*tensor.Tensor, error) { ran.Add(1); return tensor.Zeros(tensor.U8, n) }, opts...),
			size.Serve(sizeOf, opts...),
		}
	}
}

// For a worker that reads no large replies, handlers run only until the unsent replies reach
// Limits.AnswerBytes. The worker gets all replies once it reads. Calls of other workers are not
// affected.
func TestUnsentLargeRepliesAreBounded(t *testing.T) {
	const calls = 20
	for name, opts := range map[string][]agent.ServeOption{"short": {agent.WithShort()}, "plain": nil} {
		t.Run(name, func(t *testing.T) {
			memory, ran := &blockingAllocator{}, &atomic.Int64{}
			simulate(t, 3, withBlockedReader(memory, ran, opts), func(t *testing.T, group []*agent.Agent) {
				var futures []*agent.Future[*tensor.Tensor]
				for range calls {
					futures = append(futures, zeroBytes.Go(t.Context(), group[0], "worker1", 1<<20))
				}
				synctest.Wait()
				require.EqualValues(t, 4, ran.Load())
				require.Equal(t, calls-4, queued(group[1]))
				_, err := zeroBytes.Call(t.Context(), group[2], "worker1", 1<<20)
				require.NoError(t, err)

				close(memory.release)
				for _, f := range futures {
					x, err := f.Wait(t.Context())
					require.NoError(t, err)
					require.Equal(t, 1<<20, x.Len())
				}
				require.EqualValues(t, calls+1, ran.Load())
			})
		})
	}
}

// A large request is queued while the unsent replies to its caller exceed Limits.AnswerBytes.
func TestLargeCallsWaitForUnsentReplies(t *testing.T) {
	memory, ran := &blockingAllocator{}, &atomic.Int64{}
	simulate(t, 3, withBlockedReader(memory, ran, nil), func(t *testing.T, group []*agent.Agent) {
		var futures []*agent.Future[*tensor.Tensor]
		for range 4 {
			futures = append(futures, zeroBytes.Go(t.Context(), group[0], "worker1", 1<<20))
		}
		synctest.Wait()
		large := size.Go(t.Context(), group[0], "worker1", filled(t, 1, manyMore))
		synctest.Wait()
		require.Equal(t, 1, queued(group[1]))
		close(memory.release)
		n, err := large.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, manyMore, n)
		for _, f := range futures {
			_, err := f.Wait(t.Context())
			require.NoError(t, err)
		}
	})
}
