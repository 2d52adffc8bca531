package agent_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

var hang = agent.NewFunc[agent.None, agent.None]("test.hang")

// handlerEnd describes the end of the context of a handler.
type handlerEnd struct {
	left     time.Duration // until its deadline when it started, 0 without one
	duration time.Duration
	cause    error
}

// hanging serves hang, which runs until its context ends and sends a description of that. The
// channel is made by serve, within the bubble of the test.
type hanging struct{ ended chan handlerEnd }

func (h *hanging) serve(_ int, c *agent.Config) {
	h.ended = make(chan handlerEnd, 10)
	c.Funcs = agent.Funcs{hang.Serve(func(ctx context.Context, _ agent.None) (agent.None, error) {
		begun, e := time.Now(), handlerEnd{}
		if deadline, ok := ctx.Deadline(); ok {
			e.left = deadline.Sub(begun)
		}
		<-ctx.Done()
		e.duration, e.cause = time.Since(begun), context.Cause(ctx)
		h.ended <- e
		return agent.None{}, ctx.Err()
	})}
}

func TestTimeouts(t *testing.T) {
	for name, c := range map[string]struct {
		agents time.Duration // the default of the agent
		opts   []agent.CallOption
		want   time.Duration
		text   string
	}{
		"usual default":             {0, nil, time.Minute, "(60000 ms)"},
		"other default":             {3 * time.Second, nil, 3 * time.Second, "(3000 ms)"},
		"of the call":               {time.Hour, []agent.CallOption{agent.WithTimeout(200 * time.Millisecond)}, 200 * time.Millisecond, "(200 ms)"},
		"where there is no default": {agent.NoTimeout, []agent.CallOption{agent.WithTimeout(time.Second)}, time.Second, "(1000 ms)"},
		"less than 1 ms":            {0, []agent.CallOption{agent.WithTimeout(300 * time.Microsecond)}, 300 * time.Microsecond, "(0 ms)"},
		"less than 1 us":            {0, []agent.CallOption{agent.WithTimeout(1)}, 1, "(0 ms)"},
	} {
		t.Run(name, func(t *testing.T) {
			h := &hanging{}
			configure := func(rank int, config *agent.Config) {
				h.serve(rank, config)
				config.Timeout = c.agents
			}
			simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
				begun := time.Now()
				_, err := hang.Call(t.Context(), group[0], "worker1", agent.None{}, c.opts...)
				require.Equal(t, c.want, time.Since(begun))
				checkTimeout(t, err, c.want, c.text)

				begun = time.Now()
				_, err = hang.Go(t.Context(), group[0], "worker1", agent.None{}, c.opts...).Wait(t.Context())
				require.Equal(t, c.want, time.Since(begun))
				checkTimeout(t, err, c.want, c.text)

				e := <-h.ended
				require.Equal(t, max(c.want, time.Microsecond), e.left)
			})
		})
	}
}

func checkTimeout(t *testing.T, err error, want time.Duration, text string) {
	t.Helper()
	require.ErrorIs(t, err, agent.ErrTimeout)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "no reply within the call's limit of "+want.String())
	require.Contains(t, torch.Error(err), "RPC ran for more than set timeout "+text+" and will now be marked with an error")
	var timeout *agent.TimeoutError
	require.ErrorAs(t, err, &timeout)
	require.Equal(t, want, timeout.Limit)
}

// A call without a limit ends only when its context ends, with the cause of the context.
func TestNoLimit(t *testing.T) {
	h := &hanging{}
	simulate(t, 2, h.serve, func(t *testing.T, group []*agent.Agent) {
		require.NoError(t, group[0].SetDefaultTimeout(0))
		for _, opts := range [][]agent.CallOption{nil, {agent.WithTimeout(0)}} {
			ctx, cancel := context.WithCancelCause(t.Context())
			f := hang.Go(ctx, group[0], "worker1", agent.None{}, opts...)
			<-time.NewTimer(1000 * time.Hour).C
			synctest.Wait()
			require.Empty(t, h.ended)
			why := errors.New("had enough")
			cancel(why)
			_, err := f.Wait(t.Context())
			require.ErrorIs(t, err, why)
			e := <-h.ended
			require.Zero(t, e.left)
			require.ErrorIs(t, e.cause, agent.ErrCallerGone)
			require.ErrorContains(t, e.cause, "had enough")
		}
	})
}

// A context that ends before the limit of a call ends the call, and the handler has the same
// deadline. With a context that has ended no request is sent.
func TestContextDeadline(t *testing.T) {
	h := &hanging{}
	simulate(t, 2, h.serve, func(t *testing.T, group []*agent.Agent) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		begun := time.Now()
		_, err := hang.Call(ctx, group[0], "worker1", agent.None{}, agent.WithTimeout(0))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 5*time.Second, time.Since(begun))
		e := <-h.ended
		require.Equal(t, 5*time.Second, e.left)

		<-ctx.Done() // the handler may have ended first, at the same time
		_, err = hang.Call(ctx, group[0], "worker1", agent.None{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		require.Empty(t, h.ended, "no request was sent")
	})
}

// The context of a handler ends before the limit, with ErrCallerGone as the cause, when the caller
// cancels the call or its future or closes its agent.
func TestCancelledCallCancelsHandler(t *testing.T) {
	for name, cancelCall := range map[string]func(f *agent.Future[agent.None], cancel context.CancelCauseFunc, caller *agent.Agent) error{
		"context": func(_ *agent.Future[agent.None], cancel context.CancelCauseFunc, _ *agent.Agent) error {
			cancel(nil)
			return nil
		},
		"future": func(f *agent.Future[agent.None], _ context.CancelCauseFunc, _ *agent.Agent) error {
			f.Cancel(nil)
			return nil
		},
		"caller closes": func(_ *agent.Future[agent.None], _ context.CancelCauseFunc, a *agent.Agent) error { return a.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			h := &hanging{}
			simulate(t, 2, h.serve, func(t *testing.T, group []*agent.Agent) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				f := hang.Go(ctx, group[0], "worker1", agent.None{})
				synctest.Wait()
				require.NoError(t, cancelCall(f, cancel, group[0]))
				e := <-h.ended
				require.ErrorIs(t, e.cause, agent.ErrCallerGone)
				require.Less(t, e.duration, time.Minute)
			})
		})
	}
}

func TestDefaultTimeout(t *testing.T) {
	simulate(t, 1, nil, func(t *testing.T, group []*agent.Agent) {
		a := group[0]
		require.Equal(t, time.Minute, a.DefaultTimeout())
		require.NoError(t, a.SetDefaultTimeout(time.Second))
		require.Equal(t, time.Second, a.DefaultTimeout())
		err := a.SetDefaultTimeout(-1)
		require.ErrorIs(t, err, agent.ErrConfig)
		require.ErrorContains(t, err, "wrong configuration: Timeout is -1ns, and must be at least 0")
		require.Contains(t, torch.Error(err), "RPC Timeout must be non-negative")
		require.Equal(t, time.Second, a.DefaultTimeout())
	})
}

// When a call is cancelled, the cause of the context of its handler matches ErrCallerGone and
// contains the text of the caller's cause.
func TestCauseOfHandlersContext(t *testing.T) {
	park := agent.NewFunc[agent.None, agent.None]("test.park")
	begun, ended := make(chan struct{}, 1), make(chan error, 1)
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.Funcs = agent.Funcs{park.Serve(func(ctx context.Context, _ agent.None) (agent.None, error) {
			begun <- struct{}{}
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return agent.None{}, ctx.Err()
		})}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	call := park.Go(ctx, group[0], "worker1", agent.None{})
	testwait.Finish(t, begun)
	cancel(errors.New("tired"))
	err := testwait.Finish(t, ended)
	require.ErrorIs(t, err, agent.ErrCallerGone)
	require.ErrorContains(t, err, "tired")
	_, err = call.Wait(t.Context())
	require.ErrorContains(t, err, "tired")
}
