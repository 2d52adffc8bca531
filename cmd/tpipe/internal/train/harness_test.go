package train

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// group is the three workers in this process.
type group struct {
	parts    []*Part
	agents   []*agent.Agent
	requests atomic.Int64 // that were received, without those of the clean-up
}

// start joins the three workers. Stages have the files f.
func start(t testing.TB, f Files) *group {
	t.Helper()
	s := store.NewMemory(store.Limits{})
	g := &group{parts: make([]*Part, len(Names)), agents: make([]*agent.Agent, len(Names))}
	errs := make([]error, len(Names))
	var joining sync.WaitGroup
	for i, name := range Names {
		joining.Go(func() {
			c := agent.Config{Store: s, Logger: slog.New(slog.DiscardHandler)}
			if g.parts[i], errs[i] = NewPart(name, f, Device{}, &c); errs[i] != nil {
				return
			}
			c.Funcs = append(c.Funcs, perturb.Serve(g.parts[i].doPerturb))
			c.Interceptors = append(c.Interceptors, agent.Interceptor{Received: g.count})
			g.agents[i], errs[i] = agent.Join(t.Context(), c)
		})
	}
	joining.Wait()
	t.Cleanup(func() {
		for _, a := range g.agents {
			if a != nil {
				_ = a.Close() // it is shut down, unless the test has failed
			}
		}
		require.NoError(t, s.Close())
	})
	require.Equal(t, make([]error, len(Names)), errs)
	return g
}

// count counts the requests.
func (g *group) count(ctx context.Context, m *agent.Message) (context.Context, error) {
	if m.Kind == agent.KindRequest && m.Type != "dist.cleanup" {
		g.requests.Add(1)
	}
	return ctx, nil
}

// shutdown shuts all workers down, which fails if a reference is left.
func (g *group) shutdown(t testing.TB) {
	t.Helper()
	errs := make([]error, len(Names))
	var all sync.WaitGroup
	for i, a := range g.agents {
		all.Go(func() { errs[i] = a.Shutdown(t.Context()) })
	}
	all.Wait()
	require.Equal(t, make([]error, len(Names)), errs)
}

// run trains with the configuration c in a group of its own, and returns the result.
func run(t *testing.T, f Files, c Config) *Result {
	t.Helper()
	g := start(t, f)
	r, err := g.parts[0].Run(t.Context(), g.agents[0], c, func(Progress) {})
	require.NoError(t, err)
	g.shutdown(t)
	return r
}
