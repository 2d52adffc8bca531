package rref_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/rref"
)

// countRuns is a function that counts its runs and takes a second.
var countRuns = agent.NewFunc[int, int]("test.countRuns")

// TestRetriedCreation checks that a creation whose first reply was lost, and that is retried, makes one
// value, by one run of the function.
func TestRetriedCreation(t *testing.T) {
	for _, lost := range []agent.Kind{agent.KindRequest, agent.KindReply} {
		t.Run(lost.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int32
				tr := &traffic{counts: map[string]int{}}
				run(t, 2, func(_ int, c *agent.Config, o *rref.Options) {
					o.Lease, c.FaultHook = lease, tr.hook(c.Name)
					c.Funcs = append(slices.Clone(c.Funcs), countRuns.ServeAsync(func(_ context.Context, n int) *agent.Future[int] {
						f := future.New[int]()
						runs.Add(1)
						time.AfterFunc(time.Second, func() { _ = f.Set(n) })
						return f
					}))
				}, func(t *testing.T, g *group) {
					left := 1
					tr.dropIf(func(_ string, m *agent.Message) bool {
						drop := left > 0 && m.Kind == lost && m.Name == countRuns.Name()
						if drop {
							left--
						}
						return drop
					})
					f := rref.Remote(t.Context(), g.agents[0], "worker1", countRuns, 5,
						agent.WithTimeout(10*time.Second), agent.WithRetry(agent.Retry{Max: 2}))
					v, err := f.ToHere(t.Context())
					require.NoError(t, err)
					require.Equal(t, 5, v)
					_, err = f.Created().Wait(t.Context())
					require.NoError(t, err)
					require.Zero(t, left)
					require.EqualValues(t, 1, runs.Load())
					require.EqualValues(t, 1, g.refs[1].Metrics()["owner_rrefs"])
					require.NoError(t, f.Release(t.Context()))
				})
			})
		})
	}
}

type gauge struct{ n int }

func (g *gauge) Add(_ context.Context, n string) (string, error) { return n + "!", nil }

// addText has the name of the method add, and another type.
var (
	addText  = rref.NewMethod[*gauge, string, string]("Add")
	newGauge = agent.NewFunc[int, *gauge]("test.newGauge")
)

// TestMethodsOfTwoTypes checks that methods of two types may have the same name.
func TestMethodsOfTwoTypes(t *testing.T) {
	run(t, 2, func(_ int, c *agent.Config, o *rref.Options) {
		c.Funcs = append(slices.Clone(c.Funcs), newGauge.Serve(func(_ context.Context, n int) (*gauge, error) { return &gauge{n}, nil }))
		o.Methods = append(slices.Clone(o.Methods), addText.Serve((*gauge).Add))
	}, func(t *testing.T, g *group) {
		c := rref.Remote(t.Context(), g.agents[0], "worker1", newCounter, 1)
		n, err := add.Call(t.Context(), c, 2)
		require.NoError(t, err)
		require.Equal(t, 3, n)
		m := rref.Remote(t.Context(), g.agents[0], "worker1", newGauge, 1)
		text, err := addText.Call(t.Context(), m, "hello")
		require.NoError(t, err)
		require.Equal(t, "hello!", text)
		require.NoError(t, c.Release(t.Context()))
		require.NoError(t, m.Release(t.Context()))
	})
}
