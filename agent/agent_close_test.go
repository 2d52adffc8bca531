package agent_test

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// closeOnOpen is a handler that closes the agent when it opens a request.
type closeOnOpen struct{ close func(*agent.Agent) }

func (o closeOnOpen) Open(r *agent.Request) (agent.Task, error) {
	o.close(r.Agent())
	return o, nil
}

func (o closeOnOpen) Run(_ context.Context, r *agent.Request) { _ = r.Reply(&agent.None{}) }

// closer closes an agent once, from a function of the application.
type closer struct {
	once   sync.Once
	closed chan error
}

func (c *closer) close(a *agent.Agent) { c.once.Do(func() { c.closed <- a.Close() }) }

// closeAt returns an interceptor that closes the agent self() with c when it receives a message of
// this kind for a function. c closes the agent only once.
func closeAt(kind agent.Kind, c *closer, self func() *agent.Agent) []agent.Interceptor {
	return []agent.Interceptor{{Received: func(ctx context.Context, m *agent.Message) (context.Context, error) {
		if m.Kind == kind && m.Type == "" {
			c.close(self())
		}
		return ctx, nil
	}}}
}

// Close returns without an error when a function of the application calls it: a handler, a short
// handler, Handler.Open or an interceptor, on any goroutine, also on the one that reads messages.
func TestCloseInApplicationFunctions(t *testing.T) {
	stop := agent.NewFunc[agent.None, agent.None]("test.stop")
	stopping := agent.NewMessageType[agent.None, agent.None]("test.stopping")
	serve := func(c *closer, opts ...agent.ServeOption) agent.Funcs {
		return agent.Funcs{stop.Serve(func(ctx context.Context, _ agent.None) (agent.None, error) {
			c.close(agent.FromContext(ctx))
			return agent.None{}, nil
		}, opts...)}
	}
	idle := agent.Funcs{stop.Serve(func(context.Context, agent.None) (agent.None, error) { return agent.None{}, nil })}
	call := func(to agent.To) func(context.Context, *agent.Agent) {
		return func(ctx context.Context, a *agent.Agent) { _, _ = stop.Call(ctx, a, to, agent.None{}) }
	}
	goCall := func(opts ...agent.CallOption) func(context.Context, *agent.Agent) {
		return func(ctx context.Context, a *agent.Agent) { stop.Go(ctx, a, "worker1", agent.None{}, opts...) }
	}
	type configure = func(rank int, c *agent.Config, closer *closer, self func() *agent.Agent)
	closingFunc := func(opts ...agent.ServeOption) configure {
		return func(_ int, c *agent.Config, closer *closer, _ func() *agent.Agent) {
			c.Funcs = serve(closer, opts...)
		}
	}
	intercepting := func(by int, kind agent.Kind) configure {
		return func(rank int, c *agent.Config, closer *closer, self func() *agent.Agent) {
			c.Funcs = idle
			if rank == by {
				c.Interceptors = closeAt(kind, closer, self)
			}
		}
	}
	opening := func(_ int, c *agent.Config, closer *closer, _ func() *agent.Agent) {
		c.Handlers = map[string]agent.Handler{"test.stopping": closeOnOpen{closer.close}}
	}
	for name, c := range map[string]struct {
		configure configure
		begin     func(ctx context.Context, a *agent.Agent)
	}{
		"handler":                  {closingFunc(), call("worker1")},
		"short handler":            {closingFunc(agent.WithShort()), call("worker1")},
		"short handler, of itself": {closingFunc(agent.WithShort()), call("worker0")},
		"opening a request": {opening, func(ctx context.Context, a *agent.Agent) {
			_, _ = stopping.Call(ctx, a, "worker1", "", agent.None{})
		}},
		"interceptor of a request": {intercepting(1, agent.KindRequest), call("worker1")},
		"interceptor of an answer": {intercepting(0, agent.KindReply), goCall()},
		"interceptor of an answer, with retries": {
			intercepting(0, agent.KindReply), goCall(agent.WithRetry(agent.Retry{})),
		},
	} {
		for path, listen := range map[string][]string{"any": nil, "uv": {"uv://127.0.0.1:0"}} {
			t.Run(name+"/"+path, func(t *testing.T) {
				closer := &closer{closed: make(chan error, 1)}
				var group []*agent.Agent
				joined := make(chan struct{})
				group = startGroup(t, 2, func(rank int, config *agent.Config) {
					config.Listen = listen
					c.configure(rank, config, closer, func() *agent.Agent { <-joined; return group[rank] })
				})
				close(joined)
				done := testwait.Start(func() bool { c.begin(t.Context(), group[0]); return true })
				require.NoError(t, testwait.Finish(t, closer.closed))
				testwait.Finish(t, done)
			})
		}
	}
}
