package agent_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
)

// endings records the ends of all messages of a worker, each as "sent request: answered", and
// followed by "with an error" if MessageEnd.Err is set.
type endings struct {
	mu    sync.Mutex
	lines []string
	keys  map[agent.CallKey]int // number of messages of each call
}

func (e *endings) interceptor() agent.Interceptor {
	e.keys = map[agent.CallKey]int{}
	watch := func(direction string) func(context.Context, *agent.Message) error {
		return func(_ context.Context, m *agent.Message) error {
			what := fmt.Sprintf("%s %v", direction, m.Kind)
			e.mu.Lock()
			defer e.mu.Unlock()
			e.keys[m.Call()]++
			m.OnEnd(func(end agent.MessageEnd) {
				line := fmt.Sprintf("%s: %v", what, end.Outcome)
				if end.Err != nil {
					line += ", with an error"
				}
				e.mu.Lock()
				defer e.mu.Unlock()
				e.lines = append(e.lines, line)
			})
			return nil
		}
	}
	received := watch("received")
	return agent.Interceptor{
		Encoding: watch("sent"),
		Received: func(ctx context.Context, m *agent.Message) (context.Context, error) { return ctx, received(ctx, m) },
	}
}

func (e *endings) take() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.lines
	e.lines = nil
	return all
}

// TestMessageEnds checks that each message ends once, with the right outcome at either end, however
// its call ends.
func TestMessageEnds(t *testing.T) {
	identity := agent.NewFunc[any, any]("test.identity")
	unaware := agent.NewFunc[agent.None, agent.None]("test.unaware") // does not notice that its caller is gone
	fails := agent.NewFunc[agent.None, agent.None]("test.fails")
	type unregistered struct{ X int }
	for name, c := range map[string]struct {
		call           func(ctx context.Context, caller, callee *agent.Agent) error
		caller, callee []string
	}{
		"result": {
			func(ctx context.Context, a, _ *agent.Agent) error {
				_, err := identity.Call(ctx, a, "worker1", 1)
				return err
			},
			[]string{"received reply: handled", "sent request: answered"},
			[]string{"received request: handled", "sent reply: sent"},
		},
		"future": {
			func(ctx context.Context, a, _ *agent.Agent) error {
				_, err := identity.Go(ctx, a, "worker1", 1).Wait(ctx)
				return err
			},
			[]string{"received reply: handled", "sent request: answered"},
			[]string{"received request: handled", "sent reply: sent"},
		},
		"error": {
			func(ctx context.Context, a, _ *agent.Agent) error {
				return failing(fails.Call(ctx, a, "worker1", agent.None{}))
			},
			[]string{"received failure: handled, with an error", "sent request: answered, with an error"},
			[]string{"received request: handled", "sent failure: sent"},
		},
		"unencodable argument": {
			func(ctx context.Context, a, _ *agent.Agent) error {
				return failing(identity.Call(ctx, a, "worker1", unregistered{}))
			},
			[]string{"sent request: unsent, with an error"}, nil,
		},
		"unencodable argument of a future": {
			func(ctx context.Context, a, _ *agent.Agent) error {
				return failing(identity.Go(ctx, a, "worker1", unregistered{}).Wait(ctx))
			},
			[]string{"sent request: unsent, with an error"}, nil,
		},
		"unencodable result": {
			func(ctx context.Context, a, _ *agent.Agent) error {
				return failing(identity.Call(ctx, a, "worker1", "unregistered"))
			},
			[]string{"received failure: handled, with an error", "sent request: answered, with an error"},
			[]string{"sent reply: unsent, with an error", "received request: handled", "sent failure: sent"},
		},
		"argument of another type": {
			func(ctx context.Context, a, _ *agent.Agent) error {
				return failing(agent.NewFunc[int, any]("test.identity").Call(ctx, a, "worker1", 1))
			},
			[]string{"received failure: handled, with an error", "sent request: answered, with an error"},
			[]string{"received request: handled, with an error", "sent failure: sent"},
		},
		"cancelled": {
			func(ctx context.Context, a, _ *agent.Agent) error {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(time.Second, cancel)
				return failing(hang.Call(ctx, a, "worker1", agent.None{}))
			},
			[]string{"sent request: uncertain, with an error"},
			[]string{"received request: handled", "sent failure: sent"},
		},
		"cancelled future": {
			func(ctx context.Context, a, _ *agent.Agent) error {
				f := hang.Go(ctx, a, "worker1", agent.None{})
				synctest.Wait()
				f.Cancel(nil)
				return failing(f.Wait(ctx))
			},
			[]string{"sent request: uncertain, with an error"},
			[]string{"received request: handled", "sent failure: sent"},
		},
		"callee closes": {
			func(ctx context.Context, a, callee *agent.Agent) error {
				f := unaware.Go(ctx, a, "worker1", agent.None{})
				synctest.Wait()
				if err := callee.Close(); err != nil {
					return err
				}
				return failing(f.Wait(ctx))
			},
			[]string{"sent request: uncertain, with an error"},
			[]string{"received request: handled", "sent reply: uncertain, with an error"},
		},
		"to itself": {
			func(ctx context.Context, a, _ *agent.Agent) error {
				_, err := identity.Call(ctx, a, "worker0", 1)
				return err
			},
			[]string{"received reply: handled", "received request: handled", "sent reply: sent", "sent request: answered"}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := &hanging{}
			var ends [2]endings
			configure := func(rank int, c *agent.Config) {
				h.serve(rank, c)
				c.Funcs = append(c.Funcs,
					identity.Serve(func(_ context.Context, v any) (any, error) {
						if v == "unregistered" {
							return unregistered{}, nil
						}
						return v, nil
					}),
					unaware.Serve(func(context.Context, agent.None) (agent.None, error) {
						<-time.NewTimer(time.Hour).C
						return agent.None{}, nil
					}),
					fails.Serve(func(context.Context, agent.None) (agent.None, error) { return agent.None{}, errors.New("no") }))
				c.Interceptors = []agent.Interceptor{ends[rank].interceptor()}
			}
			simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
				require.NoError(t, c.call(t.Context(), group[0], group[1]))
				<-time.NewTimer(2 * time.Hour).C
				require.ElementsMatch(t, c.caller, ends[0].take())
				require.ElementsMatch(t, c.callee, ends[1].take())
			})
			for _, n := range ends[0].keys {
				require.LessOrEqual(t, n, 2, "a request and its reply")
			}
		})
	}
}

// failing returns an error if err is nil.
func failing[R any](_ R, err error) error {
	if err == nil {
		return errors.New("the call has succeeded")
	}
	return nil
}

// TestMessageEndsOfRetries checks that each attempt of a call is a message with an end of its own.
func TestMessageEndsOfRetries(t *testing.T) {
	echo := agent.NewFunc[int, int]("test.echo")
	var ends endings
	faults, err := faulty.New(faulty.Options{Rules: []faulty.Rule{{Func: echo.Name(), First: 1, Do: faulty.Drop()}}})
	require.NoError(t, err)
	configure := func(rank int, c *agent.Config) {
		c.Funcs = agent.Funcs{echo.Serve(func(_ context.Context, i int) (int, error) { return i, nil })}
		if rank == 0 {
			c.Interceptors = []agent.Interceptor{ends.interceptor()}
			c.FaultHook = faults.Inject
		}
	}
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		got, err := echo.Call(t.Context(), group[0], "worker1", 5, agent.WithTimeout(time.Second), agent.WithRetry(agent.Retry{}))
		require.NoError(t, err)
		require.Equal(t, 5, got)
		require.Equal(t, []string{"sent request: uncertain, with an error", "received reply: handled", "sent request: answered"}, ends.take())
	})
}

// TestMessageEndOfKeptReply checks that a reply that is kept WithOnce ends when it is evicted, and
// that the rest end when the caller leaves.
func TestMessageEndOfKeptReply(t *testing.T) {
	echo := agent.NewFunc[int, int]("test.echo")
	var ends endings
	configure := func(rank int, c *agent.Config) {
		c.WorldSize = 0
		c.Funcs = agent.Funcs{echo.Serve(func(_ context.Context, i int) (int, error) { return i, nil }, agent.WithOnce())}
		if rank == 1 {
			c.Interceptors = []agent.Interceptor{ends.interceptor()}
			c.Limits.MaxRemembered = 1
		}
	}
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		call := func(key string) {
			_, err := echo.Call(t.Context(), group[0], "worker1", 5, agent.WithIdempotencyKey(key))
			require.NoError(t, err)
			synctest.Wait()
		}
		call("a")
		call("a")
		require.Equal(t, []string{"received request: handled", "received request: handled"}, ends.take())
		call("b")
		require.ElementsMatch(t, []string{"received request: handled", "sent reply: sent"}, ends.take())
		require.NoError(t, group[0].Close())
		<-time.NewTimer(time.Minute).C // until worker1 has read the member list
		synctest.Wait()
		require.Equal(t, []string{"sent reply: sent"}, ends.take())
	})
}

// TestMessageOfWorker checks the agent and the incarnation of a message at both ends.
func TestMessageOfWorker(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]agent.Incarnation{} // of the peers, by the agents that saw them
	note := func(_ context.Context, m *agent.Message) error {
		mu.Lock()
		defer mu.Unlock()
		seen[m.Agent().Self().Name] = m.Incarnation()
		return nil
	}
	group := startGroup(t, 2, func(rank int, c *agent.Config) {
		serveAdd()(rank, c)
		c.Interceptors = []agent.Interceptor{{Encoding: note, Decoded: note}}
	})
	_, err := add.Call(t.Context(), group[0], "worker1", pair{filled(t, 1, 2), filled(t, 1, 2)})
	require.NoError(t, err)
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, map[string]agent.Incarnation{"worker0": group[1].Incarnation(), "worker1": group[0].Incarnation()}, seen)
}
