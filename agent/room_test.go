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
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

var (
	holds = agent.NewFunc[int, int]("test.holds")
	size  = agent.NewFunc[*tensor.Tensor, int]("test.size")
)

func sizeOf(_ context.Context, x *tensor.Tensor) (int, error) { return x.Len(), nil }

// narrow bounds what the pipes of a worker have in flight.
func narrow(c *agent.Config, bytes int) {
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
	manyMore = inFlight // of float32: too much for the pipe, where it does not pass alone
)

// The goroutines that read at two ends do not wait for each other: they have small
// answers to give when both pipes are full of what the other end has yet to look at.
func TestReadersDoNotWaitForEachOther(t *testing.T) {
	var goOn chan struct{}
	configure := func(rank int, c *agent.Config) {
		if rank == 0 {
			goOn = make(chan struct{})
		}
		narrow(c, inFlight)
		c.Timeout = agent.NoTimeout
		c.Funcs = agent.Funcs{
			holds.Serve(func(_ context.Context, n int) (int, error) { <-goOn; return n, nil }, agent.Short()),
			size.Serve(sizeOf),
		}
	}
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		var small, large []*agent.Future[int]
		for rank, a := range group {
			small = append(small, holds.Go(t.Context(), a, agent.Rank(1-rank), rank))
		}
		synctest.Wait() // both goroutines that read are in a function
		for rank, a := range group {
			large = append(large, size.Go(t.Context(), a, agent.Rank(1-rank), filled(t, 1, manyMore)))
		}
		synctest.Wait() // both pipes are full
		close(goOn)
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

// Large calls and small ones, many at once and both ways, through pipes that let little
// in flight.
func TestFloodBothWays(t *testing.T) {
	rounds := 30
	if race.Enabled {
		rounds = 5
	}
	for name, listen := range map[string][]string{"any": nil, "uv": {"uv://127.0.0.1:0"}} {
		t.Run(name, func(t *testing.T) {
			group := startGroup(t, 2, func(_ int, c *agent.Config) {
				narrow(c, inFlight)
				c.Listen = listen
				c.Timeout = agent.NoTimeout
				c.Funcs = agent.Funcs{
					echo.Serve(func(_ context.Context, n int) (int, error) { return n, nil }, agent.Short()),
					size.Serve(sizeOf, agent.Short()),
				}
			})
			calls, outcomes := flood(t, group, rounds)
			for range calls {
				require.NoError(t, patience.Finish(t, outcomes))
			}
		})
	}
}

// flood has two workers call each other so many times, and tells of each call how it
// went.
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

// jam fills the pipe from the second worker to the first: with a large call that the first
// one has no memory for until g lets the one before it go on.
func jam(t *testing.T, group []*agent.Agent) []*agent.Future[agent.None] {
	var jammed []*agent.Future[agent.None]
	for range 2 {
		jammed = append(jammed, blocked.Go(t.Context(), group[1], "worker0", filled(t, 1, manyMore)))
		synctest.Wait()
	}
	return jammed
}

// jammable configures workers for jam. The gate is of the bubble, so it comes with that.
func jammable(g *gate, funcs func() agent.Funcs) func(int, *agent.Config) {
	return func(rank int, c *agent.Config) {
		if rank == 0 {
			*g = newGate()
		}
		narrow(c, inFlight)
		c.Limits.LargeBytes = inFlight
		c.Timeout = agent.NoTimeout
		c.Funcs = append(funcs(), blocked.Serve(g.serve))
	}
}

// While answers wait for room no handler runs that would make more of them, and the
// goroutine that reads goes on all the same.
func TestRequestsWaitBehindAnswers(t *testing.T) {
	const calls = 10
	for name, opts := range map[string][]agent.ServeOption{"short": {agent.Short()}, "plain": nil} {
		t.Run(name, func(t *testing.T) {
			var g gate
			h := &hanging{}
			var ran atomic.Int64
			configure := jammable(&g, func() agent.Funcs {
				var c agent.Config
				h.serve(0, &c)
				return append(c.Funcs, echo.Serve(func(_ context.Context, n int) (int, error) { ran.Add(1); return n, nil }, opts...))
			})
			simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
				ctx, cancel := context.WithCancel(t.Context())
				hung := hang.Go(ctx, group[0], "worker1", agent.None{})
				jammed := jam(t, group)
				var futures []*agent.Future[int]
				for i := range calls {
					futures = append(futures, echo.Go(t.Context(), group[0], "worker1", i))
					synctest.Wait()
				}
				require.EqualValues(t, 1, ran.Load(), "its answer waits, and the others behind it")
				require.Equal(t, calls-1, queued(group[1]))
				cancel()
				require.ErrorIs(t, (<-h.ended).cause, agent.ErrCallerGone, "who reads there hears of it")
				require.Error(t, hung.Err())

				close(g.goOn)
				for i, f := range futures {
					n, err := f.Wait(t.Context())
					require.NoError(t, err)
					require.Equal(t, i, n)
				}
				for _, f := range jammed {
					_, err := f.Wait(t.Context())
					require.NoError(t, err)
				}
				require.EqualValues(t, calls, ran.Load())
			})
		})
	}
}

// A small call that finds no room in the pipe keeps to its limit, and one that is given
// up while there is none returns at once.
func TestLimitsInAFullPipe(t *testing.T) {
	var g gate
	h := &hanging{}
	configure := jammable(&g, func() agent.Funcs {
		var c agent.Config
		h.serve(0, &c)
		return c.Funcs
	})
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		ctx, cancel := context.WithCancel(t.Context())
		under := patience.Start(func() error {
			_, err := hang.Call(ctx, group[1], "worker0", agent.None{})
			return err
		})
		synctest.Wait()
		jammed := jam(t, group)
		begun := time.Now()
		_, err := hang.Call(t.Context(), group[1], "worker0", agent.None{}, agent.Timeout(3*time.Second))
		require.ErrorIs(t, err, agent.ErrTimeout)
		require.Equal(t, 3*time.Second, time.Since(begun))
		cancel()
		require.ErrorIs(t, <-under, context.Canceled)
		require.Equal(t, 3*time.Second, time.Since(begun))
		require.Empty(t, h.ended, "the word is on its way")
		close(g.goOn)
		for _, f := range jammed {
			_, err := f.Wait(t.Context())
			require.NoError(t, err)
		}
		require.ErrorIs(t, (<-h.ended).cause, agent.ErrCallerGone)
	})
}

// Large calls both ways that wait for memory at the other end fill both pipes; what
// gives the memory free are answers behind them.
func TestAnswersBehindCallsThatWaitForMemory(t *testing.T) {
	var g gate
	simulate(t, 2, jammable(&g, func() agent.Funcs { return nil }), func(t *testing.T, group []*agent.Agent) {
		var all []*agent.Future[agent.None]
		for range 5 {
			for rank, a := range group {
				all = append(all, blocked.Go(t.Context(), a, agent.Rank(1-rank), filled(t, 1, manyMore)))
			}
		}
		synctest.Wait()
		close(g.goOn)
		for _, f := range all {
			_, err := f.Wait(t.Context())
			require.NoError(t, err)
		}
	})
}

// queued is how many requests a worker holds back.
func queued(a *agent.Agent) (n int) {
	for _, c := range a.ServedCalls() {
		if c.State == agent.ServedQueued {
			n++
		}
	}
	return n
}

// Answers that say no wait behind others, as many as there are: nobody loses his pipe who
// broke nothing.
func TestRefusalsWaitBehindAnswers(t *testing.T) {
	var g gate
	const calls = 5000
	unknown := agent.NewFunc[agent.None, agent.None]("test.unknown")
	simulate(t, 2, jammable(&g, func() agent.Funcs { return nil }), func(t *testing.T, group []*agent.Agent) {
		jammed := jam(t, group)
		var refused []*agent.Future[agent.None]
		for range calls {
			refused = append(refused, unknown.Go(t.Context(), group[0], "worker1", agent.None{}))
		}
		synctest.Wait()
		require.Equal(t, calls-1, queued(group[1]), "behind the first answer")
		close(g.goOn)
		for _, f := range refused {
			_, err := f.Wait(t.Context())
			require.ErrorIs(t, err, agent.ErrNoFunction)
		}
		for _, f := range jammed {
			_, err := f.Wait(t.Context())
			require.NoError(t, err)
		}
	})
}

// Answers that are given again, without a run, wait as well.
func TestRememberedAnswersBehindOthers(t *testing.T) {
	var g gate
	const calls = 10
	for name, opts := range map[string][]agent.ServeOption{"short": {agent.Once(), agent.Short()}, "plain": {agent.Once()}} {
		t.Run(name, func(t *testing.T) {
			var ran atomic.Int64
			configure := jammable(&g, func() agent.Funcs {
				return agent.Funcs{echo.Serve(func(_ context.Context, n int) (int, error) { ran.Add(1); return n, nil }, opts...)}
			})
			simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
				begin := func() *agent.Future[int] {
					return echo.Go(t.Context(), group[0], "worker1", 7, agent.Idempotent("key"))
				}
				again := []*agent.Future[int]{begin()}
				_, err := again[0].Wait(t.Context())
				require.NoError(t, err)
				jammed := jam(t, group)
				for range calls {
					again = append(again, begin())
					synctest.Wait()
				}
				require.Equal(t, calls-1, queued(group[1]))
				close(g.goOn)
				for _, f := range again {
					n, err := f.Wait(t.Context())
					require.NoError(t, err)
					require.Equal(t, 7, n)
				}
				for _, f := range jammed {
					_, err := f.Wait(t.Context())
					require.NoError(t, err)
				}
				require.EqualValues(t, 1, ran.Load())
			})
		})
	}
}

// withheld is memory that nobody gets before he may: who has to make do with it takes in
// no large tensors.
type withheld struct {
	tensor.Heap
	may chan struct{}
}

func (w *withheld) Alloc(size int) (*tensor.Storage, error) {
	<-w.may
	return w.Heap.Alloc(size)
}

// ample answers with as many bytes as it is asked for.
var ample = agent.NewFunc[int, *tensor.Tensor]("test.ample")

// withholding configures three workers, of which the first takes in no large tensors
// until it may, and the others serve ample. There is room for four answers of 1 MiB.
func withholding(memory *withheld, ran *atomic.Int64, opts []agent.ServeOption) func(int, *agent.Config) {
	return func(rank int, c *agent.Config) {
		if rank == 0 {
			memory.may = make(chan struct{})
			c.Allocator = memory
		}
		c.MaxHandlers, c.Timeout = 1, agent.NoTimeout
		c.Limits.AnswerBytes = 4 << 20
		c.Funcs = agent.Funcs{
			ample.Serve(func(_ context.Context, n int) (*tensor.Tensor, error) { ran.Add(1); return tensor.Zeros(tensor.U8, n) }, opts...),
			size.Serve(sizeOf, opts...),
		}
	}
}

// A worker that takes in no large answers has no more of them made than there is room
// for, and loses nothing; others are served meanwhile.
func TestLargeAnswersBehindOthers(t *testing.T) {
	const calls = 20
	for name, opts := range map[string][]agent.ServeOption{"short": {agent.Short()}, "plain": nil} {
		t.Run(name, func(t *testing.T) {
			memory, ran := &withheld{}, &atomic.Int64{}
			simulate(t, 3, withholding(memory, ran, opts), func(t *testing.T, group []*agent.Agent) {
				var futures []*agent.Future[*tensor.Tensor]
				for range calls {
					futures = append(futures, ample.Go(t.Context(), group[0], "worker1", 1<<20))
				}
				synctest.Wait()
				require.EqualValues(t, 4, ran.Load())
				require.Equal(t, calls-4, queued(group[1]))
				_, err := ample.Call(t.Context(), group[2], "worker1", 1<<20)
				require.NoError(t, err)

				close(memory.may)
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

// Large calls wait as well then.
func TestCallsBehindLargeAnswers(t *testing.T) {
	memory, ran := &withheld{}, &atomic.Int64{}
	simulate(t, 3, withholding(memory, ran, nil), func(t *testing.T, group []*agent.Agent) {
		var futures []*agent.Future[*tensor.Tensor]
		for range 4 {
			futures = append(futures, ample.Go(t.Context(), group[0], "worker1", 1<<20))
		}
		synctest.Wait()
		large := size.Go(t.Context(), group[0], "worker1", filled(t, 1, manyMore))
		synctest.Wait()
		require.Equal(t, 1, queued(group[1]))
		close(memory.may)
		n, err := large.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, manyMore, n)
		for _, f := range futures {
			_, err := f.Wait(t.Context())
			require.NoError(t, err)
		}
	})
}
