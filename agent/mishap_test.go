package agent_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

var (
	exits  = agent.NewFunc[int, int]("test.exits")
	counts = agent.NewFunc[int, int]("test.counts")
)

func exit(context.Context, int) (int, error) {
	runtime.Goexit()
	return 0, nil
}

// A handler that ends its goroutine answers with an error, keeps no place of others,
// and does not stop the goroutine that reads.
func TestHandlerThatExits(t *testing.T) {
	for name, opts := range map[string][]agent.ServeOption{"plain": nil, "short": {agent.Short()}} {
		t.Run(name, func(t *testing.T) {
			group := startGroup(t, 2, func(_ int, c *agent.Config) {
				c.MaxHandlers = 1
				c.Funcs = agent.Funcs{exits.Serve(exit, opts...), add.Serve(addTensors)}
			})
			for range 3 {
				_, err := exits.Call(t.Context(), group[0], "worker1", 1)
				require.ErrorIs(t, err, agent.ErrPanic)
				require.ErrorContains(t, err, "Goexit")
				_, err = add.Call(t.Context(), group[0], "worker1", pair{filled(t, 1, 2), filled(t, 1, 2)})
				require.NoError(t, err)
			}
		})
	}
}

// Who holds a request and panics ends that request alone.
func TestHoldThatPanics(t *testing.T) {
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Funcs = agent.Funcs{counts.Serve(func(context.Context, int) (int, error) { return 1, nil })}
		c.Interceptors = []agent.Interceptor{{Decoded: func(_ context.Context, m *agent.Message) error {
			if m.Kind == agent.KindRequest {
				m.Hold(func(context.Context) error { panic("not today") })
			}
			return nil
		}}}
	})
	_, err := counts.Call(t.Context(), group[0], "worker1", 1)
	require.ErrorIs(t, err, agent.ErrPanic)
	require.ErrorContains(t, err, "not today")
}

// What is remembered must stay, what is borrowed goes: a function is not both.
func TestOnceAndBorrows(t *testing.T) {
	_, err := agent.Join(t.Context(), agent.Config{
		Name: "a", WorldSize: 1, Store: store.NewMemory(store.Limits{}),
		Funcs: agent.Funcs{firstHalf.Serve(func(_ context.Context, x *tensor.Tensor) (*tensor.Tensor, error) { return x, nil }, agent.Once(), agent.Borrows())},
	})
	require.ErrorIs(t, err, agent.ErrConfig)
}

// A request that waited for a place until nobody wanted it any more is not run.
func TestGivenUpBeforeItsTurn(t *testing.T) {
	g := newGate()
	var ran int
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.MaxHandlers = 1
		c.Funcs = agent.Funcs{blocked.Serve(g.serve), counts.Serve(func(context.Context, int) (int, error) {
			ran++
			return ran, nil
		}), add.Serve(addTensors, agent.Short())}
	})
	first := blocked.Go(t.Context(), group[0], "worker1", nil)
	<-g.begun
	given, cancel := context.WithCancel(t.Context())
	second := counts.Go(given, group[0], "worker1", 1)
	cancel()
	_, err := second.Wait(t.Context())
	require.ErrorIs(t, err, context.Canceled)
	// This goes behind the word that the second is given up, and needs no place.
	_, err = add.Call(t.Context(), group[0], "worker1", pair{filled(t, 1, 2), filled(t, 1, 2)})
	require.NoError(t, err)
	third := counts.Go(t.Context(), group[0], "worker1", 1)
	close(g.goOn)
	_, err = first.Wait(t.Context())
	require.NoError(t, err)
	n, err := third.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
}
