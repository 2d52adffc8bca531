package rref_test

import (
	"context"
	"maps"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// counted is the number of requests about references that workers have received, by type.
type counted struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counted) received(ctx context.Context, m *agent.Message) (context.Context, error) {
	if m.Kind == agent.KindRequest && strings.HasPrefix(m.Type, "rref.") {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.n[strings.TrimPrefix(m.Type, "rref.")]++
	}
	return ctx, nil
}

func (c *counted) now() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n)
}

// TestMessagesOfSharing checks how many messages each way of sharing takes, with the creation and the
// last deletion of all references.
func TestMessagesOfSharing(t *testing.T) {
	type numbers = map[string]int
	for name, c := range map[string]struct {
		share func(g *group, f *rref.Ref[int]) (int, error)
		want  numbers
	}{
		"not shared": {func(g *group, f *rref.Ref[int]) (int, error) {
			return f.ToHere(g.t.Context())
		}, numbers{"create.func": 1, "fetch": 1, "delete": 1}},
		"user to owner": {func(g *group, f *rref.Ref[int]) (int, error) {
			return fetch.Call(g.t.Context(), g.agents[0], "worker1", f)
		}, numbers{"create.func": 1, "delete": 1}},
		"user to user": {func(g *group, f *rref.Ref[int]) (int, error) {
			return fetch.Call(g.t.Context(), g.agents[0], "worker2", f)
		}, numbers{"create.func": 1, "fork": 1, "fetch": 1, "delete": 2}},
		"user to user, in a result": {func(g *group, f *rref.Ref[int]) (int, error) {
			made, err := makeOn.Call(g.t.Context(), g.agents[0], "worker2", "worker1")
			if err != nil {
				return 0, err
			}
			defer made.Release(g.t.Context())
			return made.ToHere(g.t.Context())
		}, numbers{"create.func": 2, "fork": 1, "accept": 1, "fetch": 1, "delete": 3}},
		"owner to user, in a result": {func(g *group, f *rref.Ref[int]) (int, error) {
			made, err := makeOn.Call(g.t.Context(), g.agents[0], "worker1", "worker1")
			if err != nil {
				return 0, err
			}
			defer made.Release(g.t.Context())
			return made.ToHere(g.t.Context())
		}, numbers{"create.func": 2, "accept": 1, "fetch": 1, "delete": 2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits for the garbage collector
			all := &counted{n: numbers{}}
			run(t, 3, func(_ int, c *agent.Config, _ *rref.Options) {
				c.Interceptors = append(c.Interceptors, agent.Interceptor{Received: all.received})
			}, func(t *testing.T, g *group) {
				f := rref.Remote(t.Context(), g.agents[0], "worker1", double, 21)
				n, err := c.share(g, f)
				require.NoError(t, err)
				require.Equal(t, 42, n)
				require.Eventually(t, func() bool { // so that the deletions do not share a message
					runtime.GC()
					return all.now()["delete"] >= c.want["delete"]-1
				}, testwait.Limit, 20*time.Millisecond)
				require.NoError(t, f.Release(t.Context()))
				g.requireEmpty()
				require.Equal(t, c.want, all.now())
			})
		})
	}
}
