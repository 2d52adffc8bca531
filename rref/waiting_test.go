package rref_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// never is a function whose value is not ready before its call ends.
var never = agent.NewFunc[agent.None, int]("test.never")

func servesNever(_ int, c *agent.Config, _ *rref.Options) {
	c.Funcs = append(slices.Clone(c.Funcs), never.Serve(func(ctx context.Context, _ agent.None) (int, error) {
		<-ctx.Done()
		return 0, context.Cause(ctx)
	}))
}

// TestWaitsEnd checks that fetches, look-ups of the type and calls of methods that run into their
// limits leave nothing at the owner, which has the value in creation still, and that a limit holds on
// the owner too.
func TestWaitsEnd(t *testing.T) {
	t.Parallel() // it waits for limits
	run(t, 2, servesNever, func(t *testing.T, g *group) {
		for i, owner := range []agent.To{"worker0", "worker1"} {
			creation, cancel := context.WithCancel(t.Context())
			f := rref.Remote(creation, g.agents[0], owner, never, agent.None{}, agent.WithTimeout(time.Second))
			limit := agent.WithTimeout(10 * time.Millisecond)
			for range 20 {
				_, err := f.ToHere(t.Context(), limit)
				require.ErrorIs(t, err, agent.ErrTimeout, owner)
			}
			_, err := f.Type(t.Context(), limit)
			require.ErrorIs(t, err, agent.ErrTimeout, owner)
			_, err = f.TypeAsync(t.Context(), limit).Wait(t.Context())
			require.ErrorIs(t, err, agent.ErrTimeout, owner)
			_, err = notOfInt.Call(t.Context(), f, agent.None{}, limit)
			require.ErrorIs(t, err, agent.ErrTimeout, owner)
			require.Eventually(t, func() bool { return g.refs[i].Waiting() == 0 }, testwait.Limit, time.Millisecond)
			cancel()
			_, err = f.ToHere(t.Context())
			require.Error(t, err, "the creation has a limit")
			require.NoError(t, f.Release(t.Context()))
		}
		g.requireEmpty()
	})
}

var notOfInt = rref.NewMethod[int, agent.None, int]("NotOfInt")

// TestCloseEndsTypeAsync checks that Close does not wait for a value that is not ready.
func TestCloseEndsTypeAsync(t *testing.T) {
	g := start(t, 1, servesNever)
	f := rref.Remote(t.Context(), g.agents[0], "worker0", never, agent.None{}, agent.WithTimeout(0))
	typ := f.TypeAsync(context.Background(), agent.WithTimeout(0))
	require.NoError(t, g.agents[0].Close())
	_, err := typ.Wait(t.Context())
	require.Error(t, err)
}

// TestHeldMethod checks that a call of a method whose result is to be kept, and which an interceptor
// rejects before the method runs, leaves no value that is never ready.
func TestHeldMethod(t *testing.T) {
	t.Parallel()
	errHeld := errors.New("held")
	run(t, 2, func(rank int, c *agent.Config, _ *rref.Options) {
		if rank == 1 {
			c.Interceptors = append(c.Interceptors, agent.Interceptor{Decoded: func(_ context.Context, m *agent.Message) error {
				if m.Type == "rref.call.remote" {
					m.Hold(func(context.Context) error { return errHeld })
				}
				return nil
			}})
		}
	}, func(t *testing.T, g *group) {
		c := rref.Remote(t.Context(), g.agents[0], "worker1", newCounter, 1)
		n := add.Remote(t.Context(), c, 2)
		_, err := n.ToHere(t.Context())
		require.ErrorContains(t, err, errHeld.Error())
		require.NoError(t, n.Release(t.Context()))
		require.NoError(t, c.Release(t.Context()))
		g.requireEmpty()
		require.Zero(t, g.refs[1].Waiting())
	})
}

// TestOverloadWhileSharing checks that a worker which cannot get a reference because it has too many
// answers with an error that matches agent.ErrOverloaded.
func TestOverloadWhileSharing(t *testing.T) {
	run(t, 3, func(_ int, _ *agent.Config, o *rref.Options) { o.MaxReferences = 1 }, func(t *testing.T, g *group) {
		f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
		_, err := hold.Call(t.Context(), g.agents[0], "worker2", holdArgs{map[string][]*rref.Ref[int]{"one": {f}}})
		require.NoError(t, err)
		_, err = fetch.Call(t.Context(), g.agents[0], "worker2", f)
		require.ErrorIs(t, err, agent.ErrOverloaded)
		require.ErrorContains(t, err, "worker1")
		releaseHeld(t)
		require.NoError(t, f.Release(t.Context()))
		g.requireEmpty()
	})
}

// askingLog is a handler of the log that asks refs for its metrics and its dump at each line.
type askingLog struct {
	slog.Handler
	refs  func() *rref.Refs
	lines chan string
}

func (h askingLog) Enabled(context.Context, slog.Level) bool { return true }
func (h askingLog) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h askingLog) Handle(_ context.Context, line slog.Record) error {
	if refs := h.refs(); refs != nil {
		_ = refs.Metrics()
		select {
		case h.lines <- line.Message:
		default:
		}
	}
	return nil
}

// TestLogMayAsk checks that a handler of the log can use the references about which a line is.
func TestLogMayAsk(t *testing.T) {
	var asked atomic.Pointer[rref.Refs]
	lines := make(chan string, 1000)
	g := start(t, 2, func(rank int, c *agent.Config, o *rref.Options) {
		if rank == 0 {
			c.Logger = slog.New(askingLog{slog.DiscardHandler, asked.Load, lines})
		}
	})
	asked.Store(g.refs[0])
	f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
	_, err := f.ToHere(t.Context())
	require.NoError(t, err)
	require.Equal(t, make([]error, 2), g.shutdown())
	var all []string
	for len(lines) > 0 {
		all = append(all, <-lines)
	}
	require.Contains(t, all, "references that were not released are released at shutdown, they may be part of a cycle")
}
