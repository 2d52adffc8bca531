package dist_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/autograd"
	"github.com/tensorpipe-go/tensorpipe/autograd/dist"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// faultHook is a FaultHook that a test sets and changes while workers run.
type faultHook struct {
	f atomic.Pointer[func(from string, m *agent.Message) agent.Fault]
}

func (h *faultHook) set(f func(from string, m *agent.Message) agent.Fault) {
	if f == nil {
		h.f.Store(nil)
		return
	}
	h.f.Store(&f)
}

// configure makes a worker use the hook.
func (h *faultHook) configure(_ int, c *agent.Config, _ *dist.Options) {
	from := c.Name
	c.FaultHook = func(m *agent.Message) agent.Fault {
		if f := h.f.Load(); f != nil {
			return (*f)(from, m)
		}
		return agent.Fault{}
	}
}

// faultOf returns a fault for the first n messages of that kind, type or function, and none for others.
func faultOf(n int64, kind agent.Kind, name string, fault agent.Fault) func(string, *agent.Message) agent.Fault {
	var seen atomic.Int64
	return func(_ string, m *agent.Message) agent.Fault {
		if m.Kind == kind && (m.Type == name || m.Name == name) && seen.Add(1) <= n {
			return fault
		}
		return agent.Fault{}
	}
}

// sleep lets simulated time pass.
func sleep(d time.Duration) { <-time.NewTimer(d).C }

// simulated runs f with n workers in simulated time, with a hook for faults.
func simulated(t *testing.T, n int, f func(t *testing.T, g *group, h *faultHook)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &faultHook{}
		run(t, n, h.configure, func(t *testing.T, g *group) {
			f(t, g, h)
			h.set(nil)
		})
	})
}

var retry = agent.WithRetry(agent.Retry{Max: 3, Delay: 100 * time.Millisecond})

// TestFailedCalls checks that calls which fail, are cancelled, run into their limit, or are repeated leave
// no send node that waits for gradients, and that the pass has the right gradients.
func TestFailedCalls(t *testing.T) {
	limit := agent.WithTimeout(time.Second)
	for name, test := range map[string]struct {
		fault func(string, *agent.Message) agent.Fault
		opts  []agent.CallOption
		fails bool
	}{
		"request lost":            {faultOf(1, agent.KindRequest, "test.mul", agent.Fault{Drop: true}), []agent.CallOption{limit}, true},
		"request late":            {faultOf(1, agent.KindRequest, "test.mul", agent.Fault{Delay: 3 * time.Second}), []agent.CallOption{limit}, true},
		"reply lost":              {faultOf(1, agent.KindReply, "test.mul", agent.Fault{Drop: true}), []agent.CallOption{limit}, true},
		"reply late":              {faultOf(1, agent.KindReply, "test.mul", agent.Fault{Delay: 3 * time.Second}), []agent.CallOption{limit}, true},
		"reply not sent":          {faultOf(1, agent.KindReply, "test.mul", agent.Fault{Err: errWhy}), []agent.CallOption{limit}, true},
		"request not sent":        {faultOf(1, agent.KindRequest, "test.mul", agent.Fault{Err: errWhy}), []agent.CallOption{limit}, true},
		"request lost, repeated":  {faultOf(1, agent.KindRequest, "test.mul", agent.Fault{Drop: true}), []agent.CallOption{limit, retry}, false},
		"request late, repeated":  {faultOf(1, agent.KindRequest, "test.mul", agent.Fault{Delay: 3 * time.Second}), []agent.CallOption{limit, retry}, false},
		"replies lost, repeated":  {faultOf(2, agent.KindReply, "test.mul", agent.Fault{Drop: true}), []agent.CallOption{limit, retry}, false},
		"reply late, repeated":    {faultOf(1, agent.KindReply, "test.mul", agent.Fault{Delay: 3 * time.Second}), []agent.CallOption{limit, retry}, false},
		"reply dropped, no limit": {faultOf(1, agent.KindReply, "test.mul", agent.Fault{Drop: true}), nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, func(t *testing.T, g *group, h *faultHook) {
				x, y := parameter(2, 2), parameter(5, 2)
				g.inContext(func(ctx context.Context, c *dist.Context) {
					h.set(test.fault)
					z, err := mul.Call(ctx, g.agents[0], "worker1", pair{x, y}, test.opts...)
					if test.fails {
						require.Error(t, err)
						require.Empty(t, c.Sends())
						z, err = mul.Call(ctx, g.agents[0], "worker1", pair{x, y})
					}
					require.NoError(t, err)
					require.Len(t, c.Sends(), 1)
					require.Len(t, c.Receives(), 1)
					require.NoError(t, c.Backward(ctx, sum(t, ctx, z)))
					requireGradient(t, 5, c, x)
					requireGradient(t, 2, c, y)
				})
				sleep(5 * time.Second) // until late messages have come
			})
		})
	}
}

// TestOnce checks the gradients of functions that are served WithOnce, whose reply is sent again.
func TestOnce(t *testing.T) {
	simulated(t, 3, func(t *testing.T, g *group, h *faultHook) {
		limit, key := agent.WithTimeout(time.Second), agent.WithIdempotencyKey("key")
		x, y := parameter(2, 2), parameter(5, 2)
		g.inContext(func(ctx context.Context, c *dist.Context) {
			h.set(faultOf(2, agent.KindReply, "test.mulOnce", agent.Fault{Drop: true}))
			z, err := mulOnce.Call(ctx, g.agents[0], "worker1", pair{x, y}, limit, retry)
			require.NoError(t, err)
			require.Len(t, c.Sends(), 1)
			require.NoError(t, c.Backward(ctx, sum(t, ctx, z)))
			requireGradient(t, 5, c, x)
			requireGradient(t, 2, c, y)
		})
		g.inContext(func(ctx context.Context, c *dist.Context) { // the application calls again
			h.set(faultOf(1, agent.KindReply, "test.mulOnce", agent.Fault{Drop: true}))
			_, err := mulOnce.Call(ctx, g.agents[0], "worker1", pair{x, y}, limit, key)
			require.ErrorIs(t, err, agent.ErrTimeout)
			z, err := mulOnce.Call(ctx, g.agents[0], "worker1", pair{x, y}, limit, key)
			require.NoError(t, err)
			_, err = mulOnce.Call(ctx, g.agents[0], "worker1", pair{y, y}, limit, key)
			require.ErrorIs(t, err, dist.ErrRepeated)
			require.NoError(t, c.Backward(ctx, sum(t, ctx, z)))
			requireGradient(t, 5, c, x)
			requireGradient(t, 2, c, y)
		})
		g.inContext(func(ctx context.Context, _ *dist.Context) { // the reply belongs to another Context
			_, err := mulOnce.Call(ctx, g.agents[0], "worker1", pair{x, y}, limit, key)
			require.ErrorIs(t, err, agent.ErrProtocol)
		})
		outside := agent.WithIdempotencyKey("outside")
		_, err := mulOnce.Call(t.Context(), g.agents[0], "worker1", pair{x, y}, limit, outside)
		require.NoError(t, err)
		g.inContext(func(ctx context.Context, c *dist.Context) { // or to none
			_, err := mulOnce.Call(ctx, g.agents[0], "worker1", pair{x, y}, limit, outside)
			require.ErrorIs(t, err, agent.ErrProtocol)
			require.Empty(t, c.Sends())
		})
	})
}

var (
	keepOnce = agent.NewFunc[pair, int]("test.keepOnce")
	kept     = agent.NewFunc[int, variable]("test.kept")
)

// TestOnceWithoutVariables checks the gradients of a function that is served WithOnce, whose reply is sent
// again and has no Variables: it keeps the product for another call.
func TestOnceWithoutVariables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &faultHook{}
		configure := func(rank int, c *agent.Config, o *dist.Options) {
			h.configure(rank, c, o)
			var product variable
			c.Funcs = append(c.Funcs,
				keepOnce.Serve(func(ctx context.Context, p pair) (n int, err error) {
					product, err = autograd.Mul(ctx, p.X, p.Y)
					return 0, err
				}, agent.WithOnce()),
				kept.Serve(func(context.Context, int) (variable, error) { return product, nil }))
		}
		run(t, 2, configure, func(t *testing.T, g *group) {
			x, y := parameter(2, 2), parameter(5, 2)
			g.inContext(func(ctx context.Context, c *dist.Context) {
				h.set(faultOf(1, agent.KindReply, "test.keepOnce", agent.Fault{Drop: true}))
				_, err := keepOnce.Call(ctx, g.agents[0], "worker1", pair{x, y}, agent.WithTimeout(time.Second), retry)
				require.NoError(t, err)
				z, err := kept.Call(ctx, g.agents[0], "worker1", 0)
				require.NoError(t, err)
				require.NoError(t, c.Backward(ctx, sum(t, ctx, z)))
				requireGradient(t, 5, c, x)
				requireGradient(t, 2, c, y)
			})
			h.set(nil)
		})
	})
}

// TestLostGradients checks that a pass fails with an error if a message is lost, that it has ended on all
// workers then, that its late messages are dropped, and that another pass has the right gradients.
func TestLostGradients(t *testing.T) {
	backward, find, settle := dist.GradientsMessage.Type(), dist.FindMessage.Type(), dist.SettleMessage.Type()
	for name, fault := range map[string]func(string, *agent.Message) agent.Fault{
		"gradients lost":   faultOf(1, agent.KindRequest, backward, agent.Fault{Drop: true}),
		"gradients late":   faultOf(1, agent.KindRequest, backward, agent.Fault{Delay: 2 * time.Minute}),
		"gradients failed": faultOf(1, agent.KindRequest, backward, agent.Fault{Err: errWhy}),
		"answer lost":      faultOf(1, agent.KindReply, backward, agent.Fault{Drop: true}),
		"answer late":      faultOf(1, agent.KindReply, backward, agent.Fault{Delay: 2 * time.Minute}),
		"question lost":    faultOf(1, agent.KindRequest, find, agent.Fault{Drop: true}),
		"states late":      faultOf(1, agent.KindReply, find, agent.Fault{Delay: 2 * time.Minute}),
		"settling lost":    faultOf(1, agent.KindRequest, settle, agent.Fault{Drop: true}),
		"settled late":     faultOf(1, agent.KindReply, settle, agent.Fault{Delay: 2 * time.Minute}),
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, func(t *testing.T, g *group, h *faultHook) {
				x, y := parameter(2, 2), parameter(5, 2)
				g.inContext(func(ctx context.Context, c *dist.Context) {
					_, err := relay.Call(ctx, g.agents[0], "worker1", viaArgs{[]string{"worker2"}, pair{x, y}}) // unused
					require.NoError(t, err)
					z, err := relay.Call(ctx, g.agents[0], "worker2", viaArgs{[]string{"worker1", "worker0"}, pair{x, y}})
					require.NoError(t, err)
					root, o := sum(t, ctx, z), dist.PassOptions{RetainGraph: true, UnusedZero: true}
					h.set(fault)
					err = c.BackwardWith(ctx, o, root)
					require.Error(t, err)
					require.True(t, errors.Is(err, agent.ErrTimeout) || errors.Is(err, agent.ErrUnreachable), "%v", err)
					require.Regexp(t, "on worker[12]: ", err.Error())
					var at *dist.NodeError
					require.ErrorAs(t, err, &at)
					g.requireNoPass()
					want := gradientOr0(t, c, x) // some gradients may have been added
					sleep(3 * time.Minute)       // until late messages have come
					require.InDelta(t, want, gradientOr0(t, c, x), 0)
					require.NoError(t, c.BackwardWith(ctx, o, root))
					requireGradient(t, want+5, c, x)
				})
				g.inContext(func(ctx context.Context, c *dist.Context) {
					z, err := relay.Call(ctx, g.agents[0], "worker2", viaArgs{[]string{"worker1", "worker0"}, pair{x, y}})
					require.NoError(t, err)
					require.NoError(t, c.Backward(ctx, sum(t, ctx, z)))
					requireGradient(t, 5, c, x)
					requireGradient(t, 2, c, y)
				})
			})
		})
	}
}

// gradientOr0 returns the first element of the gradient of x, 0 if there is none.
func gradientOr0(t require.TestingT, c *dist.Context, x variable) float32 {
	g, err := c.Gradient(x)
	if errors.Is(err, autograd.ErrNoGradient) {
		return 0
	}
	require.NoError(t, err)
	data, err := tensor.Data[float32](g.Tensor())
	require.NoError(t, err)
	return data[0]
}

// requireNoPass waits until no worker takes part in a pass.
func (g *group) requireNoPass() {
	g.t.Helper()
	require.Eventually(g.t, func() bool {
		for _, a := range g.graphs {
			if a.Metrics()["num_current_backward_passes"] != 0 {
				return false
			}
		}
		return true
	}, time.Minute, time.Millisecond, "a pass has not ended")
}

// TestLostCleanup checks that the clean-up reaches all workers although messages about it are lost, and
// that late requests do not bring a Context back.
func TestLostCleanup(t *testing.T) {
	for name, fault := range map[string]func(string, *agent.Message) agent.Fault{
		"requests lost": faultOf(10, agent.KindRequest, dist.CleanupMessage.Type(), agent.Fault{Drop: true}),
		"replies lost":  faultOf(10, agent.KindReply, dist.CleanupMessage.Type(), agent.Fault{Drop: true}),
		"not sent":      faultOf(10, agent.KindRequest, dist.CleanupMessage.Type(), agent.Fault{Err: errWhy}),
		"late request":  faultOf(1, agent.KindRequest, "test.mul", agent.Fault{Delay: time.Hour}),
		"late copy":     faultOf(1, agent.KindRequest, "test.relay", agent.Fault{Extra: 1, Delay: time.Hour}),
		"late reply":    faultOf(1, agent.KindReply, "test.relay", agent.Fault{Delay: time.Hour}),
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, func(t *testing.T, g *group, h *faultHook) {
				x, y := parameter(2, 2), parameter(5, 2)
				h.set(fault)
				g.inContext(func(ctx context.Context, _ *dist.Context) {
					_, _ = mul.Call(ctx, g.agents[0], "worker2", pair{x, y}, agent.WithTimeout(time.Second))
					_, _ = relay.Call(ctx, g.agents[0], "worker1", viaArgs{[]string{"worker2"}, pair{x, y}}, agent.WithTimeout(time.Second))
				})
				sleep(2 * time.Hour)
				synctest.Wait()
				for i, a := range g.graphs {
					require.Equal(t, empty, a.Metrics(), "worker%d", i)
					require.Equal(t, map[string]int{"contexts": 0, "usages": 0, "cleanups": 0}, a.Tables(), "worker%d", i)
				}
			})
		})
	}
}

// TestLostIntermediary ends a worker that has called another one within a Context, without an orderly end. Its
// clean-up message never comes, but the other worker asks the creator.
func TestLostIntermediary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := start(t, 3, nil)
		ctx, c, err := dist.WithContext(t.Context(), g.agents[0])
		require.NoError(t, err)
		_, err = relay.Call(ctx, g.agents[0], "worker1", viaArgs{[]string{"worker2"}, pair{parameter(2, 2), parameter(5, 2)}})
		require.NoError(t, err)
		require.NoError(t, g.agents[1].Close())
		sleep(5 * time.Minute)
		require.EqualValues(t, 1, g.graphs[2].Metrics()["num_autograd_contexts"], "the Context is open")
		require.NoError(t, c.Close())
		sleep(time.Minute)
		require.Equal(t, empty, g.graphs[2].Metrics())
	})
}

// TestUnreachableCreator cuts a worker off for longer, and for less, than Options.LostAfter: its Contexts
// end on the others only in the first case.
func TestUnreachableCreator(t *testing.T) {
	for _, test := range []struct {
		cut  time.Duration
		left int64
	}{{20 * time.Second, 1}, {90 * time.Second, 0}} {
		t.Run(fmt.Sprint(test.cut), func(t *testing.T) {
			simulated(t, 2, func(t *testing.T, g *group, h *faultHook) {
				g.inContext(func(ctx context.Context, _ *dist.Context) {
					_, err := total.Call(ctx, g.agents[0], "worker1", parameter(1, 2))
					require.NoError(t, err)
					h.set(func(string, *agent.Message) agent.Fault { return agent.Fault{Drop: true} })
					sleep(test.cut)
					h.set(nil)
					sleep(2 * time.Minute)
					require.Equal(t, test.left, g.graphs[1].Metrics()["num_autograd_contexts"])
				})
			})
		})
	}
}
