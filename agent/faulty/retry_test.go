package faulty_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
)

var count = agent.NewFunc[agent.None, int]("test.count")

// counting counts how many times its function runs.
type counting struct {
	runs atomic.Int32
	fail error
	wait func(ctx context.Context) error
}

func (c *counting) serve(opts ...agent.ServeOption) agent.Funcs {
	return agent.Funcs{count.Serve(func(ctx context.Context, _ agent.None) (int, error) {
		n := int(c.runs.Add(1))
		if c.wait != nil {
			if err := c.wait(ctx); err != nil {
				return 0, err
			}
		}
		return n, c.fail
	}, opts...)}
}

// TestRetry checks that with the default Retry, the attempts of a call are made at the times at
// which PyTorch makes them, until one succeeds.
func TestRetry(t *testing.T) {
	for _, async := range []bool{false, true} {
		c := &counting{}
		rules := []faulty.Rule{{First: 4, Do: faulty.Fail(nil)}}
		simulate(t, 2, c.serve(), rules, func(t *testing.T, group []*agent.Agent, faults *faulty.Faulty) {
			begun := time.Now()
			var n int
			var err error
			if async {
				n, err = count.Go(t.Context(), group[0], "worker1", agent.None{}, agent.WithRetry(agent.Retry{})).Wait(t.Context())
			} else {
				n, err = count.Call(t.Context(), group[0], "worker1", agent.None{}, agent.WithRetry(agent.Retry{}))
			}
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.Equal(t, time.Second+time.Second+1500*time.Millisecond+2250*time.Millisecond, time.Since(begun))
			require.Equal(t, faulty.Count{Matched: 5, Taken: 4}, faults.Counts()[0])
		})
	}
}

func TestRetryLimit(t *testing.T) {
	c := &counting{}
	simulate(t, 2, c.serve(), []faulty.Rule{{Do: faulty.Fail(nil)}}, func(t *testing.T, group []*agent.Agent, faults *faulty.Faulty) {
		retry := agent.WithRetry(agent.Retry{Max: 2, Delay: time.Minute, Backoff: 1})
		begun := time.Now()
		_, err := count.Call(t.Context(), group[0], "worker1", agent.None{}, retry)
		require.ErrorContains(t, err, "no success in 3 attempts: ")
		require.Contains(t, torch.Error(err), "The RPC has not succeeded after the specified number of max retries (2).")
		require.ErrorIs(t, err, faulty.ErrInjected)
		var over *agent.RetryError
		require.ErrorAs(t, err, &over)
		require.Equal(t, 2*time.Minute, time.Since(begun))
		require.Equal(t, 3, faults.Counts()[0].Matched)
	})
}

// TestNoRetry checks that a call is not retried if the function returned an error, or if the worker
// or the function does not exist.
func TestNoRetry(t *testing.T) {
	c := &counting{fail: errors.New("no luck")}
	simulate(t, 2, c.serve(), nil, func(t *testing.T, group []*agent.Agent, _ *faulty.Faulty) {
		retry := agent.WithRetry(agent.Retry{})
		_, err := count.Call(t.Context(), group[0], "worker1", agent.None{}, retry)
		require.ErrorContains(t, err, "no luck")
		require.EqualValues(t, 1, c.runs.Load())

		_, err = count.Call(t.Context(), group[0], "worker7", agent.None{}, retry)
		require.ErrorIs(t, err, agent.ErrNoWorker)
		_, err = double.Call(t.Context(), group[0], "worker1", 1, retry)
		require.ErrorIs(t, err, agent.ErrNoFunction)
	})
}

func TestRetryStops(t *testing.T) {
	for name, end := range map[string]func(a *agent.Agent, cancel func()) error{
		"agent closes": func(a *agent.Agent, _ func()) error { return a.Close() },
		"context ends": func(_ *agent.Agent, cancel func()) error { cancel(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			c := &counting{}
			simulate(t, 2, c.serve(), []faulty.Rule{{Do: faulty.Fail(nil)}}, func(t *testing.T, group []*agent.Agent, faults *faulty.Faulty) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				f := count.Go(ctx, group[0], "worker1", agent.None{}, agent.WithRetry(agent.Retry{Delay: time.Hour}))
				synctest.Wait()
				begun := time.Now()
				require.NoError(t, end(group[0], cancel))
				_, err := f.Wait(t.Context())
				require.ErrorIs(t, err, faulty.ErrInjected)
				if name == "agent closes" {
					require.ErrorIs(t, err, agent.ErrClosed)
				} else {
					require.ErrorIs(t, err, context.Canceled)
				}
				require.Less(t, time.Since(begun), time.Hour)
				require.Equal(t, 1, faults.Counts()[0].Matched)
			})
		})
	}
}

// TestCancelRetry checks that after the future of a call has been cancelled, no further attempt of
// the call is made.
func TestCancelRetry(t *testing.T) {
	c := &counting{}
	simulate(t, 2, c.serve(), []faulty.Rule{{Do: faulty.Fail(nil)}}, func(t *testing.T, group []*agent.Agent, faults *faulty.Faulty) {
		f := count.Go(t.Context(), group[0], "worker1", agent.None{}, agent.WithRetry(agent.Retry{Delay: time.Hour}))
		synctest.Wait()
		f.Cancel(context.Canceled)
		synctest.Wait()
		require.NoError(t, group[0].Close())
		require.Equal(t, 1, faults.Counts()[0].Matched)
	})
}

func TestBadRetry(t *testing.T) {
	c := &counting{}
	simulate(t, 2, c.serve(), nil, func(t *testing.T, group []*agent.Agent, _ *faulty.Faulty) {
		for text, option := range map[string]agent.CallOption{
			"maxRetries cannot be negative":               agent.WithRetry(agent.Retry{Max: -1}),
			"maxRetries cannot be exponentially decaying": agent.WithRetry(agent.Retry{Backoff: 0.9}),
			"rpcRetryDuration cannot be negative":         agent.WithRetry(agent.Retry{Delay: -1}),
			"a key of 0 bytes":                            agent.WithIdempotencyKey(""),
			"RPC Timeout must be non-negative":            agent.WithTimeout(-1),
		} {
			_, err := count.Call(t.Context(), group[0], "worker1", agent.None{}, option)
			require.ErrorIs(t, err, agent.ErrConfig)
			require.Contains(t, torch.Error(err), text)
			_, err = count.Go(t.Context(), group[0], "worker1", agent.None{}, option).Wait(t.Context())
			require.ErrorIs(t, err, agent.ErrConfig)
		}
		require.Zero(t, c.runs.Load())
	})
}

// TestOnceWithLostReplies checks that if the replies to the first two attempts of a call are lost,
// a function served with WithOnce runs once and the call gets its result; without WithOnce it runs
// for each attempt.
func TestOnceWithLostReplies(t *testing.T) {
	for _, once := range []bool{false, true} {
		for _, fail := range []error{nil, errors.New("no luck")} {
			c := &counting{fail: fail}
			var opts []agent.ServeOption
			if once {
				opts = append(opts, agent.WithOnce())
			}
			answers := []agent.Kind{agent.KindReply, agent.KindFailure}
			rules := []faulty.Rule{{Kinds: answers, First: 2, Do: faulty.Drop()}}
			simulate(t, 2, c.serve(opts...), rules, func(t *testing.T, group []*agent.Agent, _ *faulty.Faulty) {
				for i := range 3 {
					n, err := count.Call(t.Context(), group[0], "worker1", agent.None{}, agent.WithRetry(agent.Retry{}))
					if fail != nil {
						require.ErrorContains(t, err, "no luck")
					} else {
						require.NoError(t, err)
					}
					switch {
					case once:
						require.EqualValues(t, i+1, c.runs.Load())
					default:
						require.EqualValues(t, i+3, c.runs.Load())
					}
					if fail == nil {
						require.EqualValues(t, c.runs.Load(), n)
					}
				}
			})
		}
	}
}

// TestOnceWhileItRuns checks that with WithOnce, an attempt that arrives while the function runs
// for an earlier attempt waits for that run and gets its result.
func TestOnceWhileItRuns(t *testing.T) {
	c := &counting{wait: func(context.Context) error { return pause(context.Background(), 25*time.Second) }}
	simulate(t, 2, c.serve(agent.WithOnce()), nil, func(t *testing.T, group []*agent.Agent, _ *faulty.Faulty) {
		begun := time.Now()
		n, err := count.Call(t.Context(), group[0], "worker1", agent.None{}, agent.WithTimeout(10*time.Second), agent.WithRetry(agent.Retry{}))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.EqualValues(t, 1, c.runs.Load())
		require.Equal(t, 25*time.Second, time.Since(begun))
	})
}

// TestOnceAfterCancellation checks that with WithOnce, a function that ended because its first
// attempt was cancelled is run again for the next attempt, whose result the call returns.
func TestOnceAfterCancellation(t *testing.T) {
	c := &counting{}
	c.wait = func(ctx context.Context) error {
		if c.runs.Load() > 1 {
			return nil
		}
		<-ctx.Done()
		return pause(context.Background(), 5*time.Second) // the next attempt arrives meanwhile
	}
	inner := c.wait
	c.wait = func(ctx context.Context) error {
		if err := inner(ctx); err != nil {
			return err
		}
		return ctx.Err()
	}
	simulate(t, 2, c.serve(agent.WithOnce()), nil, func(t *testing.T, group []*agent.Agent, _ *faulty.Faulty) {
		n, err := count.Call(t.Context(), group[0], "worker1", agent.None{}, agent.WithTimeout(10*time.Second), agent.WithRetry(agent.Retry{}))
		require.NoError(t, err)
		require.Equal(t, 2, n)
	})
}

// TestOnceWithDuplicates checks that with WithOnce, duplicate and delayed requests run a function
// once for each idempotency key of each caller.
func TestOnceWithDuplicates(t *testing.T) {
	c := &counting{}
	rules := []faulty.Rule{{Do: faulty.Duplicate()}, {Every: 2, Do: faulty.Delay(time.Minute)}}
	simulate(t, 3, c.serve(agent.WithOnce()), rules, func(t *testing.T, group []*agent.Agent, _ *faulty.Faulty) {
		for range 5 {
			_, err := count.Call(t.Context(), group[0], "worker2", agent.None{}, agent.WithTimeout(0), agent.WithIdempotencyKey("a"))
			require.NoError(t, err)
		}
		_, err := count.Call(t.Context(), group[0], "worker2", agent.None{}, agent.WithTimeout(0), agent.WithIdempotencyKey("b"))
		require.NoError(t, err)
		_, err = count.Call(t.Context(), group[1], "worker2", agent.None{}, agent.WithTimeout(0), agent.WithIdempotencyKey("a"))
		require.NoError(t, err)
		synctest.Wait()
		require.EqualValues(t, 3, c.runs.Load())
	})
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
