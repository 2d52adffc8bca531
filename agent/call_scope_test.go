package agent_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

var (
	gated = agent.NewFunc[int, int]("test.gated")
	fails = agent.NewFunc[string, agent.None]("test.fails")
)

// startGated joins two workers that serve the functions gated and fails. The handler of gated sends
// its argument to begun, and returns when gate is closed or the call is cancelled. The workers are
// closed at the end of the test.
func startGated(t *testing.T) (group []*agent.Agent, begun chan int, gate chan struct{}) {
	begun, gate = make(chan int, 64), make(chan struct{})
	group = startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Funcs = agent.Funcs{
			gated.Serve(func(ctx context.Context, n int) (int, error) {
				begun <- n
				select {
				case <-gate:
					return n, nil
				case <-ctx.Done():
					return 0, context.Cause(ctx)
				}
			}),
			fails.Serve(func(_ context.Context, text string) (agent.None, error) { return agent.None{}, errors.New(text) }),
		}
	})
	return group, begun, gate
}

// If the function that WaitAll runs panics, WaitAll waits for the calls of that function before the
// panic continues.
func TestWaitAllPanics(t *testing.T) {
	group, begun, gate := startGated(t)
	var call *agent.Future[int]
	ended := testwait.Start(func() (v any) {
		defer func() { v = recover() }()
		return agent.WaitAll(t.Context(), func(ctx context.Context) error {
			call = gated.Go(ctx, group[0], "worker1", 1)
			panic("oh")
		})
	})
	testwait.Finish(t, begun)
	close(gate)
	require.Equal(t, "oh", testwait.Finish(t, ended))
	require.True(t, call.IsDone())
}

// WaitAll also waits for calls that other goroutines, such as callbacks of futures, make with its
// context.
func TestWaitAllOfCallsOfCallbacks(t *testing.T) {
	group, begun, gate := startGated(t)
	close(gate)
	inner := make(chan *agent.Future[int], 1)
	var second *agent.Future[int]
	err := agent.WaitAll(t.Context(), func(ctx context.Context) error {
		go func() {
			<-begun
			inner <- gated.Go(ctx, group[0], "worker1", 2)
		}()
		_, err := gated.Call(ctx, group[0], "worker1", 1)
		second = testwait.Finish(t, inner)
		return err
	})
	require.NoError(t, err)
	require.True(t, second.IsDone())
}

func TestWaitAllOrFail(t *testing.T) {
	group, begun, _ := startGated(t)
	var waiting *agent.Future[int]
	err := agent.WaitAllOrFail(t.Context(), func(ctx context.Context) error {
		waiting = gated.Go(ctx, group[0], "worker1", 1)
		testwait.Finish(t, begun)
		fails.Go(ctx, group[0], "worker1", "unlucky")
		<-ctx.Done()
		return ctx.Err()
	})
	require.ErrorContains(t, err, "test.fails on worker1: unlucky")
	require.True(t, waiting.IsDone())
	require.ErrorContains(t, waiting.Err(), "unlucky") // the cause with which it was cancelled

	require.NoError(t, agent.WaitAllOrFail(t.Context(), func(context.Context) error { return nil }))
	own := errors.New("own")
	require.ErrorIs(t, agent.WaitAllOrFail(t.Context(), func(context.Context) error { return own }), own)
}
