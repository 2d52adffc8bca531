package agent_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

var (
	endless = agent.NewServerStream[int, *tensor.Tensor]("test.endless")
	sink    = agent.NewClientStream[*tensor.Tensor, int]("test.sink")
	idle    = agent.NewBidiStream[int, int]("test.idle")
)

// endlessServer serves endless: it sends tensors with as many float32 as the argument until a send
// fails. sent has an element for each tensor that was sent, and ended receives the error of Send and
// the cause with which the context of the handler has ended.
type endlessServer struct {
	sent  chan struct{}
	ended chan [2]error
}

func newEndlessServer() endlessServer {
	return endlessServer{make(chan struct{}, 100_000), make(chan [2]error, 100)}
}

func (e endlessServer) serve(ctx context.Context, n int, out *agent.SendStream[*tensor.Tensor]) error {
	x, err := tensor.Zeros(tensor.F32, n)
	for err == nil {
		if err = out.Send(x); err == nil {
			e.sent <- struct{}{}
		}
	}
	<-ctx.Done()
	e.ended <- [2]error{err, context.Cause(ctx)}
	return err
}

// requireIdle requires that no call, request or stream is left at the workers of group. It waits
// until the last messages have arrived.
func requireIdle(t *testing.T, group ...*agent.Agent) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, a := range group {
			m := a.Metrics()
			if m.PendingCalls+m.ServedCalls+m.RunningHandlers > 0 {
				return false
			}
		}
		return true
	}, time.Minute, time.Millisecond)
}

// A sender stops within the window of a receiver that does not read, for values of any size. Other
// calls and streams of the connection go on, both small and large ones. When the caller leaves the
// loop the handler's context ends and nothing remains.
func TestSlowReceiverOfStream(t *testing.T) {
	for name, listen := range map[string][]string{"shm": {"shm://"}, "uv": {"uv://127.0.0.1:0"}} {
		for size, n := range map[string]int{"small": 10, "inline": 1 << 12, "large": 1 << 16, "larger than the window": 1 << 20} {
			t.Run(name+"/"+strings.ReplaceAll(size, " ", "-"), func(t *testing.T) {
				e := newEndlessServer()
				group := startGroup(t, 2, func(rank int, c *agent.Config) {
					c.Listen = listen
					serveStreams(rank, c)
					c.Funcs = append(c.Funcs, endless.Serve(e.serve), add.Serve(addTensors))
				})
				received := 0
				for x, err := range endless.Call(t.Context(), group[0], "worker1", n, agent.WithTimeout(0)) {
					require.NoError(t, err)
					require.Equal(t, n, x.Len())
					if received++; received < 5 {
						continue
					}
					for range 20 {
						large := filled(t, 1, 1<<18)
						sum, err := add.Call(t.Context(), group[0], "worker1", pair{large, large})
						require.NoError(t, err)
						same, err := tensor.Equal(sum, filled(t, 2, 1<<18))
						require.NoError(t, err)
						require.True(t, same)
						_, err = echo.Call(t.Context(), group[0], "worker1", 1)
						require.NoError(t, err)
					}
					useStreams(t, group[0], "worker1")
					break
				}
				errs := testwait.Finish(t, e.ended)
				require.ErrorIs(t, errs[0], agent.ErrCallerGone)
				require.ErrorIs(t, errs[1], agent.ErrCallerGone)
				require.ErrorContains(t, errs[0], "left the loop")
				// One more may be in the memory of the pipe beyond the window.
				require.LessOrEqual(t, (len(e.sent)-received-1)*(4*n+512), 1<<20)
				requireIdle(t, group...)
			})
		}
	}
}

// A value as large as the limit of bytes in flight that a receiver does not read does not hold up the
// other calls and streams of its connection.
func TestUnreadValueOfStream(t *testing.T) {
	n := race.Pick(1<<28, 1<<20) // of float32
	for name, listen := range map[string][]string{"shm": {"shm://"}, "uv": {"uv://127.0.0.1:0"}} {
		t.Run(name, func(t *testing.T) {
			begun := make(chan struct{})
			var contexts [2]*pipe.Context
			group := startGroup(t, 2, func(rank int, c *agent.Config) {
				c.Listen = listen
				c.NewContext = func(o pipe.Options) (made *pipe.Context, err error) {
					contexts[rank], err = tensorpipe.NewContext(o)
					return contexts[rank], err
				}
				serveStreams(rank, c)
				c.Funcs = append(c.Funcs, sink.Serve(func(ctx context.Context, _ iter.Seq2[*tensor.Tensor, error]) (int, error) {
					close(begun)
					<-ctx.Done()
					return 0, context.Cause(ctx)
				}), add.Serve(addTensors))
			})
			x, err := tensor.Zeros(tensor.F32, n)
			require.NoError(t, err)
			s, err := sink.Open(t.Context(), group[0], "worker1", agent.WithTimeout(0))
			require.NoError(t, err)
			sent := make(chan error, 1)
			go func() { sent <- s.Send(x) }()
			<-begun
			require.Eventually(t, func() bool { return contexts[0].Stats().BytesInFlight >= 4*n }, time.Minute, time.Millisecond)
			large := filled(t, 1, 1<<18)
			sum, err := add.Call(t.Context(), group[0], "worker1", pair{large, large}, agent.WithTimeout(time.Minute))
			require.NoError(t, err)
			require.Equal(t, large.Len(), sum.Len())
			useStreams(t, group[0], "worker1")
			s.Cancel(errTooMany)
			if err := testwait.Finish(t, sent); err != nil { // nil if the other end drops the value first
				require.ErrorIs(t, err, errTooMany)
			}
			requireIdle(t, group...)
		})
	}
}

// A handler that does not read holds up only its own stream; when it returns, its caller's Send
// returns io.EOF and CloseAndReceive the result.
func TestSlowHandlerOfStream(t *testing.T) {
	for name, n := range map[string]int{"small": 10, "large": 1 << 16, "larger than the window": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			proceed := make(chan struct{})
			group := startGroup(t, 2, func(rank int, c *agent.Config) {
				serveStreams(rank, c)
				c.Funcs = append(c.Funcs, sink.Serve(func(ctx context.Context, in iter.Seq2[*tensor.Tensor, error]) (int, error) {
					for _, err := range in {
						<-proceed
						return 7, err
					}
					return 0, nil
				}))
			})
			s, err := sink.Open(t.Context(), group[0], "worker1", agent.WithTimeout(0))
			require.NoError(t, err)
			require.NoError(t, s.Send(filled(t, 1, n)))
			sent := make(chan error, 1)
			x := filled(t, 1, n)
			go func() {
				for {
					if err := s.Send(x); err != nil {
						sent <- err
						return
					}
				}
			}()
			useStreams(t, group[0], "worker1")
			close(proceed)
			require.EqualError(t, testwait.Finish(t, sent), "EOF")
			result, err := s.CloseAndReceive()
			require.NoError(t, err)
			require.Equal(t, 7, result)
			requireIdle(t, group...)
		})
	}
}

// The end of the context, Cancel, a panic in the loop and the end of the handler free a stream at
// both ends while both wait.
func TestCancelStream(t *testing.T) {
	why := errors.New("not wanted")
	for name, stop := range map[string]func(cancel context.CancelCauseFunc, s *agent.BidiStreamCall[int, int]){
		"context": func(cancel context.CancelCauseFunc, _ *agent.BidiStreamCall[int, int]) { cancel(why) },
		"cancel":  func(_ context.CancelCauseFunc, s *agent.BidiStreamCall[int, int]) { s.Cancel(why) },
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan error, 1)
			group := startGroup(t, 2, func(_ int, c *agent.Config) {
				c.Funcs = agent.Funcs{idle.Serve(func(ctx context.Context, s *agent.Stream[int, int]) error {
					_, err := collect(s.Receive())
					ended <- errors.Join(err, want(agent.ErrCallerGone, errors.Unwrap(context.Cause(ctx))))
					return nil
				})}
			})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			s, err := idle.Open(ctx, group[0], "worker1")
			require.NoError(t, err)
			require.NoError(t, s.Send(1))
			received := make(chan error, 1)
			go func() { _, err := collect(s.Receive()); received <- err }()
			stop(cancel, s)
			require.ErrorIs(t, testwait.Finish(t, received), why)
			require.ErrorIs(t, s.Send(1), why)
			require.ErrorIs(t, testwait.Finish(t, ended), agent.ErrCallerGone)
			requireIdle(t, group...)
		})
	}
	t.Run("panic", func(t *testing.T) {
		e := newEndlessServer()
		group := startGroup(t, 2, func(_ int, c *agent.Config) { c.Funcs = agent.Funcs{endless.Serve(e.serve)} })
		require.PanicsWithValue(t, "in the loop", func() {
			for range endless.Call(t.Context(), group[0], "worker1", 1) {
				panic("in the loop")
			}
		})
		require.ErrorIs(t, testwait.Finish(t, e.ended)[1], agent.ErrCallerGone)
		requireIdle(t, group...)
	})
	t.Run("panic of the handler", func(t *testing.T) {
		group := startGroup(t, 2, func(_ int, c *agent.Config) {
			c.Funcs = agent.Funcs{idle.Serve(func(_ context.Context, s *agent.Stream[int, int]) error {
				_ = s.Send(1) // its value arrives, which the test requires
				panic("in the handler")
			})}
		})
		s, err := idle.Open(t.Context(), group[0], "worker1")
		require.NoError(t, err)
		values, err := collect(s.Receive())
		require.Equal(t, []int{1}, values)
		require.ErrorIs(t, err, agent.ErrPanic)
		requireIdle(t, group...)
	})
}

// A stream ends when an end has waited for the idle limit and nothing has moved, at both ends. A
// stream on which values move lives longer than the limit.
func TestIdleStream(t *testing.T) {
	const limit = 10 * time.Second
	pace := agent.NewServerStream[time.Duration, int]("test.pace")
	var ended chan error // made in the bubble
	configure := func(rank int, c *agent.Config) {
		if rank == 1 {
			ended = make(chan error, 1)
		}
		c.Funcs = agent.Funcs{
			pace.Serve(func(ctx context.Context, every time.Duration, out *agent.SendStream[int]) error {
				for i := range 10 {
					t := time.NewTimer(every)
					defer t.Stop()
					select {
					case <-t.C:
					case <-ctx.Done():
						return context.Cause(ctx)
					}
					if err := out.Send(i); err != nil {
						return err
					}
				}
				return nil
			}),
			idle.Serve(func(_ context.Context, s *agent.Stream[int, int]) error {
				_, err := collect(s.Receive())
				ended <- err
				return err
			}),
		}
	}
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		begun := time.Now()
		values, err := collect(pace.Call(t.Context(), group[0], "worker1", limit-time.Second, agent.WithTimeout(limit)))
		require.NoError(t, err)
		require.Len(t, values, 10)
		require.GreaterOrEqual(t, time.Since(begun), 9*limit)

		begun = time.Now()
		values, err = collect(pace.Call(t.Context(), group[0], "worker1", limit+time.Second, agent.WithTimeout(limit)))
		require.Empty(t, values)
		requireIdleError(t, err, limit)
		require.Equal(t, limit, time.Since(begun))

		// Only the handler waits.
		s, err := idle.Open(t.Context(), group[0], "worker1", agent.WithTimeout(limit))
		require.NoError(t, err)
		require.NoError(t, s.Send(1))
		requireIdleError(t, <-ended, limit)
		_, err = collect(s.Receive())
		requireIdleError(t, err, limit)

		// A deadline of the context bounds the whole stream.
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		values, err = collect(pace.Call(ctx, group[0], "worker1", time.Second+limit/5, agent.WithTimeout(limit)))
		require.Len(t, values, 3)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		for _, a := range group {
			m := a.Metrics()
			require.Zero(t, m.PendingCalls+m.ServedCalls+m.RunningHandlers)
		}
	})
}

// requireIdleError requires that err is that of a stream that was idle for limit.
func requireIdleError(t *testing.T, err error, limit time.Duration) {
	t.Helper()
	require.ErrorIs(t, err, agent.ErrTimeout)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	var timeout *agent.TimeoutError
	require.ErrorAs(t, err, &timeout)
	require.Equal(t, agent.TimeoutError{Limit: limit, Idle: true}, *timeout)
}
