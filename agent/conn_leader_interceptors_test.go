package agent_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

var note = agent.NewFunc[int, agent.None]("test.note")

// callingInterceptor is an interceptor that makes a call for each message of one kind about echo.
type callingInterceptor struct {
	kind  agent.Kind
	to    agent.To
	agent *agent.Agent // set once it has joined

	mu    sync.Mutex
	notes []*agent.Future[agent.None]
}

func (n *callingInterceptor) decoded(ctx context.Context, m *agent.Message) error {
	if m.Kind != n.kind || m.Name != echo.Name() {
		return nil
	}
	f := note.Go(context.WithoutCancel(ctx), n.agent, n.to, 1)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notes = append(n.notes, f)
	return nil
}

// requireCalls requires that the interceptor has made exactly many calls, blocks until they have
// ended, and requires that they have succeeded.
func (n *callingInterceptor) requireCalls(t *testing.T, many int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	require.Len(t, n.notes, many)
	for _, f := range n.notes {
		_, err := f.Wait(t.Context())
		require.NoError(t, err)
	}
}

// serve returns a configure function for startGroup that makes all workers serve echo, double and
// note, and installs the interceptor n at the worker whose rank is at.
func (n *callingInterceptor) serve(at int) func(int, *agent.Config) {
	return func(rank int, c *agent.Config) {
		c.Funcs = agent.Funcs{
			echo.Serve(func(_ context.Context, n int) (int, error) { return n, nil }, agent.WithShort()),
			double.Serve(func(_ context.Context, n int) (int, error) { return 2 * n, nil }, agent.WithShort()),
			note.Serve(func(context.Context, int) (agent.None, error) { return agent.None{}, nil }, agent.WithShort()),
		}
		if rank == at {
			c.Interceptors = []agent.Interceptor{{Decoded: n.decoded}}
		}
	}
}

// A call that an interceptor of replies makes does not wait for the byte budget: the replies that
// would free the budget are read only after the reply that the interceptor handles.
func TestCallsOfInterceptorsNeedNoBudget(t *testing.T) {
	const calls = 40
	n := &callingInterceptor{kind: agent.KindReply, to: "worker1"}
	configure := func(rank int, c *agent.Config) {
		n.serve(0)(rank, c)
		c.Limits.CallBytes = 3000 // of five calls
	}
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		n.agent = group[0]
		begun := time.Now()
		outcomes := make(chan error, calls)
		for i := range calls {
			go func() {
				got, err := echo.Go(t.Context(), group[0], "worker1", i).Wait(t.Context())
				if err == nil {
					err = want(i, got)
				}
				outcomes <- err
			}()
		}
		for range calls {
			require.NoError(t, <-outcomes)
		}
		n.requireCalls(t, calls)
		require.Zero(t, time.Since(begun))
	})
}

// While an interceptor opens a pipe to another worker, the messages of the connection on which it
// runs are still read.
func TestCallsOfInterceptorsOnANewPipe(t *testing.T) {
	for name, n := range map[string]*callingInterceptor{
		"reply":   {kind: agent.KindReply, to: "worker2"},
		"request": {kind: agent.KindRequest, to: "worker2"},
	} {
		t.Run(name, func(t *testing.T) {
			at := 0
			if n.kind == agent.KindRequest {
				at = 1
			}
			synctest.Test(t, func(t *testing.T) {
				network := simnet.New(mem.New(mem.NewNetwork()), simnet.Delay(time.Second))
				group := startGroup(t, 3, func(rank int, c *agent.Config) {
					n.serve(at)(rank, c)
					c.Listen, c.Insecure = []string{"sim://" + c.Name}, true // of this process
					c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
						o.Transports = []pipe.TransportEntry{{Name: "sim", Transport: network}}
						o.Channels = []pipe.ChannelEntry{{Name: "xth", Factory: xth.New()}}
						return pipe.New(o)
					}
				})
				n.agent = group[at]
				_, err := double.Call(t.Context(), group[0], "worker1", 1)
				require.NoError(t, err, "opens the pipe")
				first := echo.Go(t.Context(), group[0], "worker1", 1)
				second := double.Go(t.Context(), group[0], "worker1", 2)
				<-second.Done() // Wait would read messages, and run the interceptor
				got, err := second.Result()
				require.NoError(t, err)
				require.Equal(t, 4, got)
				require.False(t, first.IsDone(), "it waits for the new pipe")
				_, err = first.Wait(t.Context())
				require.NoError(t, err)
				n.requireCalls(t, 1)
			})
		})
	}
}

// A short function may run on the goroutine of a caller that waits. If the function ends that
// goroutine, the caller's own call is cancelled, and later requests are served.
func TestGoexitOfShortFunction(t *testing.T) {
	type outcome struct {
		returned bool
		err      error
	}
	for name, call := range map[string]func(ctx context.Context, a *agent.Agent) error{
		"call": func(ctx context.Context, a *agent.Agent) error {
			_, err := hang.Call(ctx, a, "worker1", agent.None{}, agent.WithTimeout(0))
			return err
		},
		"with retries": func(ctx context.Context, a *agent.Agent) error { // on a goroutine of the agent
			_, err := hang.Go(ctx, a, "worker1", agent.None{}, agent.WithTimeout(0), agent.WithRetry(agent.Retry{})).Wait(ctx)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := &hanging{}
			configure := func(rank int, c *agent.Config) {
				h.serve(rank, c)
				c.Funcs = append(c.Funcs, exits.Serve(exit, agent.WithShort()))
			}
			simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
				for range 3 {
					ended := make(chan outcome, 1)
					go func() {
						var o outcome
						defer func() { ended <- o }()
						o.err = call(t.Context(), group[0])
						o.returned = true
					}()
					synctest.Wait()
					_, err := exits.Call(t.Context(), group[1], "worker0", 1)
					require.ErrorIs(t, err, agent.ErrPanic)
					if o := <-ended; name == "call" {
						require.False(t, o.returned, "the function ran on the goroutine of the caller")
					} else {
						require.ErrorContains(t, o.err, "the goroutine of the caller has ended")
					}
					synctest.Wait()
					require.Empty(t, group[0].Snapshot().Pending)
					require.ErrorIs(t, (<-h.ended).cause, agent.ErrCallerGone)
				}
				_, err := exits.Call(t.Context(), group[0], "worker1", 1)
				require.ErrorIs(t, err, agent.ErrPanic, "on the read loop")
				requireAll(t, group, func(a *agent.Agent) error { return a.Shutdown(t.Context()) })
			})
		})
	}
}

// An interceptor that ends its goroutine makes the call that it handles fail with ErrPanic, without
// waiting for the limit, and no other call.
func TestGoexitOfInterceptors(t *testing.T) {
	for name, kind := range map[string]agent.Kind{"request": agent.KindRequest, "reply": agent.KindReply} {
		t.Run(name, func(t *testing.T) {
			configure := func(rank int, c *agent.Config) {
				(&callingInterceptor{}).serve(0)(rank, c)
				c.Interceptors = []agent.Interceptor{{Decoded: func(_ context.Context, m *agent.Message) error {
					if m.Kind == kind && m.Name == echo.Name() {
						runtime.Goexit()
					}
					return nil
				}}}
			}
			simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
				for range 3 {
					begun := time.Now()
					called := echo.Go(t.Context(), group[0], "worker1", 1)
					synctest.Wait() // a goroutine that waited now would be ended
					_, err := called.Wait(t.Context())
					require.ErrorIs(t, err, agent.ErrPanic)
					got, err := double.Go(t.Context(), group[0], "worker1", 1).Wait(t.Context())
					require.NoError(t, err)
					require.Equal(t, 2, got)
					require.Zero(t, time.Since(begun), "the call ends before its limit")
				}
			})
		})
	}
}
