package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// waitForCaller serves idle: it sends 1, receives until the stream ends, and returns the error of
// sending or receiving after it has passed that to ended.
func waitForCaller(ended chan<- error) func(context.Context, *agent.Stream[int, int]) error {
	return func(_ context.Context, s *agent.Stream[int, int]) error {
		err := s.Send(1)
		if err == nil {
			_, err = collect(s.Receive())
		}
		ended <- err
		return err
	}
}

// Streams of a killed process end at the other end with the same errors as calls: at a caller with
// ErrUnreachable, at a handler with ErrCallerGone.
func TestKilledDuringStreams(t *testing.T) {
	for name, victim := range map[string]int{"called worker": 1, "caller": 0} {
		t.Run(name, func(t *testing.T) {
			group := procgroup.Start(t, 2, func(m *procgroup.Member) error {
				ended := make(chan error, 1)
				a, err := joinMember(m, func(c *agent.Config) { c.Funcs = agent.Funcs{idle.Serve(waitForCaller(ended))} })
				if err != nil {
					return err
				}
				if m.Rank == 1 {
					err := <-ended
					if !errors.Is(err, agent.ErrCallerGone) {
						return fmt.Errorf("want ErrCallerGone, got %w", err)
					}
					return a.Close()
				}
				ctx, cancel := context.WithTimeout(m.Context(), maxDeathDelay)
				defer cancel()
				s, err := idle.Open(ctx, a, "worker1", agent.WithTimeout(0))
				if err != nil {
					return err
				}
				for n, err := range s.Receive() {
					if err != nil {
						return errors.Join(wantDeath(err, "call", "worker1"), wantDeath(s.Send(1), "call", "worker1"), a.Close())
					}
					m.Send(fmt.Sprint("received ", n))
				}
				return errors.New("the stream has ended without an error")
			})
			group.WaitFor(0, "received 1")
			group.Kill(victim)
			require.NoError(t, group.WaitExit(1-victim))
		})
	}
}

// Shutdown waits for a stream in progress, which goes on, in static and in dynamic groups and at
// either end.
func TestShutdownDrainsStreams(t *testing.T) {
	for name, dynamic := range map[string]bool{"static": false, "dynamic": true} {
		for _, first := range []int{0, 1} {
			t.Run(fmt.Sprint(name, first), func(t *testing.T) {
				var ended chan error
				configure := func(rank int, c *agent.Config) {
					if rank == 1 {
						ended = make(chan error, 1)
					}
					if dynamic {
						c.WorldSize = 0
					}
					c.Funcs = agent.Funcs{idle.Serve(waitForCaller(ended))}
				}
				simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
					s, err := idle.Open(t.Context(), group[0], "worker1", agent.WithTimeout(0))
					require.NoError(t, err)
					require.NoError(t, s.Send(1))
					down := make(chan error, 2)
					go func() { down <- group[first].Shutdown(t.Context()) }()
					if !dynamic {
						go func() { down <- group[1-first].Shutdown(t.Context()) }()
					}
					synctest.Wait()
					require.Empty(t, down)
					require.NoError(t, s.Send(2))
					require.NoError(t, s.CloseSend())
					values, err := collect(s.Receive())
					require.NoError(t, err)
					require.Equal(t, []int{1}, values)
					require.NoError(t, <-ended)
					require.NoError(t, <-down)
					if !dynamic {
						require.NoError(t, <-down)
					}
				})
			})
		}
	}
}

// Close ends streams at both ends with the errors of calls.
func TestCloseDuringStream(t *testing.T) {
	for name, closed := range map[string]int{"caller": 0, "called worker": 1} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan error, 1)
			group := startGroup(t, 2, func(_ int, c *agent.Config) { c.Funcs = agent.Funcs{idle.Serve(waitForCaller(ended))} })
			s, err := idle.Open(t.Context(), group[0], "worker1", agent.WithTimeout(0))
			require.NoError(t, err)
			require.NoError(t, s.Send(1))
			received := testwait.Start(func() error { _, err := collect(s.Receive()); return err })
			require.NoError(t, group[closed].Close())
			err = testwait.Finish(t, received)
			// The failure of the handler of a worker that closes may arrive before the pipe ends.
			require.True(t, errors.Is(err, agent.ErrClosed) || closed == 1 && errors.Is(err, agent.ErrUnreachable), "%v", err)
			err = testwait.Finish(t, ended)
			require.True(t, errors.Is(err, agent.ErrClosed) || closed == 0 && errors.Is(err, agent.ErrCallerGone), "%v", err)
		})
	}
}

// Streams beyond MaxStreams fail with ErrOverloaded, which names the limit, until one has ended. A
// stream takes a slot of MaxHandlers, also while its handler waits for the caller, and further
// streams wait; a handler that waits for a stream of its own has no slot.
func TestStreamLimits(t *testing.T) {
	ended := make(chan error, 10)
	relay := agent.NewFunc[int, int]("test.relay")
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		c.MaxHandlers, c.Limits.MaxStreams = 2, 3
		c.Funcs = agent.Funcs{
			idle.Serve(waitForCaller(ended)),
			relay.Serve(func(ctx context.Context, n int) (int, error) {
				values, err := collect(count.Call(ctx, agent.FromContext(ctx), "worker1", n))
				return len(values), err
			}),
			count.Serve(func(_ context.Context, n int, out *agent.SendStream[int]) error {
				for i := range n {
					if err := out.Send(i); err != nil {
						return err
					}
				}
				return nil
			}),
		}
	})
	var open []*agent.BidiStreamCall[int, int]
	for i := range 3 {
		s, err := idle.Open(t.Context(), group[0], "worker1")
		require.NoError(t, err)
		open = append(open, s)
		if i < 2 {
			require.NoError(t, s.Send(1)) // the handler runs
		}
	}
	require.Eventually(t, func() bool {
		m := group[1].Metrics()
		return m.RunningHandlers == 2 && m.QueuedRequests == 1
	}, time.Minute, time.Millisecond)
	_, err := collect(count.Call(t.Context(), group[0], "worker1", 1))
	require.ErrorIs(t, err, agent.ErrOverloaded)
	require.ErrorContains(t, err, "MaxStreams")
	for _, s := range open {
		require.NoError(t, s.CloseSend())
		_, err := collect(s.Receive())
		require.NoError(t, err)
	}
	requireIdle(t, group...)
	// Two handlers that open streams to their own worker take both slots unless they give them up.
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			n, err := relay.Call(t.Context(), group[0], "worker1", 100)
			require.NoError(t, err)
			require.Equal(t, 100, n)
		})
	}
	calls.Wait()
}

// Interceptors see the request that opens a stream, with its headers, and its end; events report one
// call and one request.
func TestStreamIsSeenAsOneCall(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	see := func(rank int, m *agent.Message, what string) error {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, fmt.Sprint(rank, " ", what, " ", m.Kind, " ", m.Type, " ", m.Name))
		return nil
	}
	report := func(what string, id agent.CallID, err error) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, fmt.Sprint(what, " ", id.Number, " ", id.Type, " ", id.Name, " ", errors.Is(err, errTooMany)))
	}
	group := startGroup(t, 2, func(rank int, c *agent.Config) {
		serveStreams(rank, c)
		c.Registry = codec.NewRegistry()
		require.NoError(t, c.Registry.RegisterError("test.errTooMany", errTooMany))
		c.Interceptors = []agent.Interceptor{{
			Encoded: func(_ context.Context, m *agent.Message) error { return see(rank, m, "sends") },
			Decoded: func(_ context.Context, m *agent.Message) error { return see(rank, m, "receives") },
		}}
		c.Events = &agent.Events{
			CallStarted:  func(i agent.CallStartedInfo) { report("call started", i.Call, nil) },
			CallEnded:    func(i agent.CallEndedInfo) { report("call ended", i.Call, i.Err) },
			ServeStarted: func(i agent.ServeStartedInfo) { report("serve started", i.Call, nil) },
			ServeEnded:   func(i agent.ServeEndedInfo) { report("serve ended", i.Call, i.Err) },
		}
	})
	mu.Lock()
	seen = nil // those of joining
	mu.Unlock()
	values, err := collect(count.Call(t.Context(), group[0], "worker1", 1001))
	require.ErrorIs(t, err, errTooMany)
	require.Len(t, values, 1000)
	requireIdle(t, group...)
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(seen) // the ends of both ends are concurrent
	const typ = " agent.stream.server test.count"
	require.Equal(t, []string{
		"0 receives failure" + typ, "0 sends request" + typ, "1 receives request" + typ, "1 sends failure" + typ,
		"call ended 1" + typ + " true", "call started 1" + typ + " false",
		"serve ended 1" + typ + " true", "serve started 1" + typ + " false",
	}, seen)
}
