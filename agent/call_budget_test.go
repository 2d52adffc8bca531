package agent_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
)

var echo = agent.NewFunc[int, int]("test.echo")

// Many more calls than the byte budget of the caller admits are begun while no handler returns. No
// more requests than the budget admits reach the worker that is called, and every call gets its
// result once the handlers return.
func TestManyCallsInFlight(t *testing.T) {
	short.Skip(t, "100,000 calls")
	const calls1KiB = 1000
	calls := 100_000
	if race.Enabled {
		calls = 10_000
	}
	var most, running atomic.Int64
	proceed := make(chan struct{})
	configure := func(rank int, c *agent.Config) {
		c.Timeout = agent.NoTimeout
		c.Limits.CallBytes = calls1KiB * 1024
		c.MaxHandlers = 4
		c.Funcs = agent.Funcs{echo.Serve(func(_ context.Context, n int) (int, error) {
			now := running.Add(1)
			defer running.Add(-1)
			<-proceed
			for {
				old := most.Load()
				if now <= old || most.CompareAndSwap(old, now) {
					return n, nil
				}
			}
		})}
	}
	group := startGroup(t, 2, configure)
	var begun, all sync.WaitGroup
	begun.Add(calls)
	var sum, wrong atomic.Int64
	for i := range calls {
		all.Go(func() {
			begun.Done()
			n, err := echo.Call(t.Context(), group[0], "worker1", i)
			if err != nil || n != i {
				wrong.Add(1)
			}
			sum.Add(int64(n))
		})
	}
	begun.Wait()
	require.LessOrEqual(t, group[1].Metrics().ServedCalls, calls1KiB*1024/512)
	close(proceed)
	all.Wait()
	require.Zero(t, wrong.Load())
	require.EqualValues(t, calls*(calls-1)/2, sum.Load())
	require.LessOrEqual(t, most.Load(), int64(4))
}

// While no handler returns, the budget of the caller bounds the requests at the worker that is
// called. The other calls wait at the caller, and all calls succeed once the handlers return.
func TestCallsBeyondTheBudgetWaitAtCaller(t *testing.T) {
	const calls = 10_000
	var proceed chan struct{}
	configure := func(rank int, c *agent.Config) {
		proceed = make(chan struct{})
		c.Timeout = agent.NoTimeout
		c.Limits.CallBytes = 64 << 10
		c.Funcs = agent.Funcs{echo.Serve(func(_ context.Context, n int) (int, error) { <-proceed; return n, nil })}
	}
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		var all sync.WaitGroup
		var right atomic.Int64
		for i := range calls {
			all.Go(func() {
				if n, err := echo.Call(t.Context(), group[0], "worker1", i); err == nil && n == i {
					right.Add(1)
				}
			})
		}
		synctest.Wait()
		m := group[0].Metrics()
		require.Equal(t, calls, m.PendingCalls)
		require.LessOrEqual(t, calls-m.BlockedCalls, 64<<10/512)
		require.Equal(t, calls-m.BlockedCalls, group[1].Metrics().ServedCalls)
		close(proceed)
		all.Wait()
		require.EqualValues(t, calls, right.Load())
		require.Zero(t, group[0].Metrics().PendingCalls)
	})
}

// A call that waits for the byte budget ends at its limit, and its request is never sent. Once a
// pending call is cancelled, its bytes are free for the next call.
func TestTimeoutWhileBlocked(t *testing.T) {
	h := &hanging{}
	configure := func(rank int, c *agent.Config) {
		h.serve(rank, c)
		c.Limits.CallBytes = 600
	}
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		ctx, cancel := context.WithCancel(t.Context())
		first := hang.Go(ctx, group[0], "worker1", agent.None{})
		begun := time.Now()
		_, err := hang.Call(t.Context(), group[0], "worker1", agent.None{}, agent.WithTimeout(3*time.Second))
		require.ErrorIs(t, err, agent.ErrTimeout)
		require.Equal(t, 3*time.Second, time.Since(begun))
		cancel()
		_, err = first.Wait(t.Context())
		require.ErrorIs(t, err, context.Canceled)
		_, err = hang.Call(t.Context(), group[0], "worker1", agent.None{}, agent.WithTimeout(time.Second))
		require.ErrorIs(t, err, agent.ErrTimeout)
		require.Equal(t, 4*time.Second, time.Since(begun))
		synctest.Wait()
		require.Len(t, h.ended, 2, "the request of the second call was not sent")
	})
}
