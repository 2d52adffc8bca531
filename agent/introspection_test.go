package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"runtime/pprof"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

var (
	relay = agent.NewFunc[agent.None, agent.None]("test.relay")
	later = agent.NewFunc[agent.None, agent.None]("test.later")
)

// relayed is a handler that calls the function hang at worker0 and returns the result of that call.
func relayed(ctx context.Context, _ agent.None) (agent.None, error) {
	return hang.Call(ctx, agent.FromContext(ctx), "worker0", agent.None{})
}

func sleep(d time.Duration) { <-time.NewTimer(d).C }

// states returns the names and states of the calls that a makes and of the requests that it serves,
// the oldest first, each as "name: state".
func states(a *agent.Agent) (calls, served []string) {
	for _, c := range a.Snapshot().Pending {
		calls = append(calls, c.Name+": "+c.State.String())
	}
	for _, r := range a.Snapshot().Served {
		served = append(served, r.Name+": "+r.State.String())
	}
	return calls, served
}

// Snapshot, Metrics and Dump show every state in which calls and requests can remain for long.
func TestStates(t *testing.T) {
	h := &hanging{}
	var held chan struct{}
	configure := func(rank int, c *agent.Config) {
		if rank == 0 {
			h.serve(rank, c)
			c.Limits.CallBytes = 3000 // of five calls
			return
		}
		held = make(chan struct{})
		c.MaxHandlers = 1
		c.Funcs = agent.Funcs{
			relay.Serve(relayed, agent.WithOnce()),
			later.ServeAsync(func(context.Context, agent.None) *agent.Future[agent.None] { return future.New[agent.None]() }),
			hang.Serve(func(ctx context.Context, _ agent.None) (agent.None, error) {
				<-ctx.Done()
				return agent.None{}, ctx.Err()
			}),
		}
		c.Interceptors = []agent.Interceptor{{Decoded: func(ctx context.Context, m *agent.Message) error {
			if m.Kind == agent.KindRequest && m.Name == "test.hold" {
				m.Hold(func(context.Context) error { <-held; return errors.New("released") })
			}
			return nil
		}}}
		c.Funcs = append(c.Funcs, agent.NewFunc[agent.None, agent.None]("test.hold").Serve(func(context.Context, agent.None) (agent.None, error) { return agent.None{}, nil }))
	}
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		a, b := group[0], group[1]
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		begin := func(f agent.Func[agent.None, agent.None], opts ...agent.CallOption) {
			go f.Call(ctx, a, "worker1", agent.None{}, opts...)
			synctest.Wait()
			sleep(time.Second)
		}
		begin(later)
		begin(relay, agent.WithIdempotencyKey("same"))
		begin(relay, agent.WithIdempotencyKey("same"))
		begin(agent.NewFunc[agent.None, agent.None]("test.hold"))
		begin(hang)
		begin(hang)

		calls, served := states(a)
		require.Equal(t, []string{
			"test.later: at the callee", "test.relay: at the callee", "test.relay: at the callee",
			"test.hold: at the callee", "test.hang: at the callee", "test.hang: waiting for the byte budget",
		}, calls)
		require.Equal(t, []string{"test.hang: running"}, served)
		calls, served = states(b)
		require.Equal(t, []string{"test.hang: at the callee"}, calls)
		require.Equal(t, []string{
			"test.later: to be replied to later", "test.relay: waiting for a call of its own", "test.relay: waiting for the reply to a repeat",
			"test.hold: held back", "test.hang: running",
		}, served)
		require.Equal(t, agent.Metrics{
			MaxHandlers: 256, RunningHandlers: 1, PendingCalls: 6, BlockedCalls: 1, ServedCalls: 1, Pipes: 1,
		}, a.Metrics())
		require.Zero(t, testing.AllocsPerRun(10, func() { _ = b.Metrics() }))
		info := torch.DebugInfo(b.Metrics())
		for name, want := range map[string]string{
			"agent.thread_pool_size": "1", "agent.num_idle_threads": "0", "agent.client_active_calls": "1",
			"agent.server_active_calls": "5", "agent.server_active_async_calls": "1", "agent.pipes": "1",
		} {
			require.Equal(t, want, info[name], name)
		}

		var text strings.Builder
		require.NoError(t, a.Dump(&text))
		require.Equal(t, `agent worker0 rank 0: 1 of 256 handlers running, 0 requests waiting for one, 1 pipes
calls: 6
  #1 test.later to worker1: 6s, at the callee
  #2 test.relay to worker1: 5s, at the callee
  #3 test.relay to worker1: 4s, at the callee
  #4 test.hold to worker1: 3s, at the callee
  #5 test.hang to worker1: 2s, at the callee
  #6 test.hang to worker1: 1s, waiting for the byte budget
serving: 1
  #1 test.hang from worker1: 5s, running
`, text.String())
		text.Reset()
		require.NoError(t, b.Dump(&text))
		require.Contains(t, text.String(), "  #4 test.hold from worker0: 3s, held back\n")

		close(held)
		cancel()
		synctest.Wait()
		for _, worker := range group {
			require.Empty(t, worker.Snapshot().Pending)
			require.Empty(t, worker.Snapshot().Served)
		}
	})
}

// Requests beyond Config.MaxHandlers are queued, and Metrics and Snapshot show them as queued.
func TestQueued(t *testing.T) {
	h := &hanging{}
	configure := func(rank int, c *agent.Config) { h.serve(rank, c); c.MaxHandlers = 2 }
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 5 {
			hang.Go(ctx, group[0], "worker1", agent.None{})
		}
		synctest.Wait()
		m := group[1].Metrics()
		require.Equal(t, []int{2, 3, 5}, []int{m.RunningHandlers, m.QueuedRequests, m.ServedCalls})
		_, served := states(group[1])
		require.Equal(t, 3, strings.Count(strings.Join(served, "\n"), "waiting for a slot"))
		cancel()
		synctest.Wait()
		require.Zero(t, group[1].Metrics().RunningHandlers)
	})
}

// The limit of a call includes the time in which its pipe is opened. Until then Snapshot shows the
// call as waiting for a pipe.
func TestConnecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := simnet.New(mem.New(mem.NewNetwork()), simnet.Delay(4*time.Second))
		group := startGroup(t, 2, func(_ int, c *agent.Config) {
			c.Listen, c.Insecure = []string{"sim://" + c.Name}, true // of this process
			c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
				o.Transports = []pipe.TransportEntry{{Name: "sim", Transport: network}}
				o.Channels = []pipe.ChannelEntry{{Name: "xth", Factory: xth.New()}}
				return pipe.New(o)
			}
		})
		begun := time.Now()
		f := make(chan error, 1)
		go func() {
			_, err := add.Call(t.Context(), group[0], "worker1", pair{}, agent.WithTimeout(3*time.Second))
			f <- err
		}()
		synctest.Wait()
		calls, _ := states(group[0])
		require.Equal(t, []string{"test.add: waiting for a pipe"}, calls)
		require.ErrorIs(t, <-f, agent.ErrTimeout)
		require.Equal(t, 3*time.Second, time.Since(begun))
	})
}

// Replies to calls that have ended, and duplicate replies, are discarded and counted in
// Metrics.LateReplies.
func TestLateReplies(t *testing.T) {
	faults, err := faulty.New(faulty.Options{Rules: []faulty.Rule{
		{Kinds: []agent.Kind{agent.KindReply}, First: 3, Do: faulty.Delay(5 * time.Second)},
		{Kinds: []agent.Kind{agent.KindReply}, Skip: 3, First: 1, Do: faulty.Duplicate()},
	}})
	require.NoError(t, err)
	configure := func(rank int, c *agent.Config) { serveAdd()(rank, c); c.FaultHook = faults.Inject }
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		args := pair{filled(t, 1, 2, 2), filled(t, 2, 2, 2)}
		for range 3 {
			_, err := add.Call(t.Context(), group[0], "worker1", args, agent.WithTimeout(time.Second))
			require.ErrorIs(t, err, agent.ErrTimeout)
		}
		require.Zero(t, group[0].Metrics().LateReplies)
		sleep(5 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 3, group[0].Metrics().LateReplies)
		_, err := add.Call(t.Context(), group[0], "worker1", args, agent.WithTimeout(time.Second))
		require.NoError(t, err)
		synctest.Wait()
		require.EqualValues(t, 4, group[0].Metrics().LateReplies)
	})
}

// A request that arrives again while it is served is counted in Metrics.DuplicateRequests and not
// served twice.
func TestDuplicateRequests(t *testing.T) {
	faults, err := faulty.New(faulty.Options{Rules: []faulty.Rule{{Do: faulty.Duplicate()}}})
	require.NoError(t, err)
	h := &hanging{}
	configure := func(rank int, c *agent.Config) { h.serve(rank, c); c.FaultHook = faults.Inject }
	simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
		ctx, cancel := context.WithCancel(t.Context())
		f := hang.Go(ctx, group[0], "worker1", agent.None{})
		synctest.Wait()
		require.EqualValues(t, 1, group[1].Metrics().DuplicateRequests)
		require.Equal(t, "1", torch.DebugInfo(group[1].Metrics())["agent.repeated_requests"])
		cancel()
		_, err := f.Wait(t.Context())
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, (<-h.ended).cause, agent.ErrCallerGone)
	})
}

// ownLabels returns the profile labels of the calling goroutine, which it finds in the goroutine
// profile. The map is empty if there are none. The error is not nil if the goroutine is in no
// profile.
func ownLabels() (map[string]string, error) {
	var profile strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return nil, err
	}
	labels := map[string]string{}
	for stack := range strings.SplitSeq(profile.String(), "\n\n") {
		if !strings.Contains(stack, ".ownLabels+") {
			continue
		}
		if _, after, labelled := strings.Cut(stack, "# labels: "); labelled {
			line, _, _ := strings.Cut(after, "\n")
			err := json.Unmarshal([]byte(line), &labels)
			return labels, err
		}
		return labels, nil
	}
	return nil, errors.New("this goroutine is in no profile")
}

func TestProfileLabels(t *testing.T) {
	for _, labels := range []bool{false, true} {
		seen := agent.NewFunc[agent.None, map[string]string]("test.labels")
		group := startGroup(t, 2, func(_ int, c *agent.Config) {
			c.ProfileLabels = labels
			c.Funcs = agent.Funcs{seen.Serve(func(ctx context.Context, _ agent.None) (map[string]string, error) {
				if caller, ok := agent.Caller(ctx); !ok || caller.Name != "worker0" {
					return nil, errors.New("not the context of the call")
				}
				return ownLabels()
			})}
		})
		got, err := seen.Call(t.Context(), group[0], "worker1", agent.None{})
		require.NoError(t, err)
		want := map[string]string{}
		if labels {
			want = map[string]string{"function": "test.labels", "caller": "worker0"}
		}
		require.Equal(t, want, got)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestDumpToBrokenWriter(t *testing.T) {
	require.ErrorIs(t, startGroup(t, 1, nil)[0].Dump(brokenWriter{}), io.ErrClosedPipe)
}

// A call that waits for its next attempt is in Snapshot, Metrics and Dump, until its context ends.
func TestCallsBetweenAttempts(t *testing.T) {
	for _, async := range []bool{false, true} {
		faults, err := faulty.New(faulty.Options{Rules: []faulty.Rule{{First: 1, Do: faulty.Fail(nil)}}})
		require.NoError(t, err)
		h := &hanging{}
		configure := func(rank int, c *agent.Config) { h.serve(rank, c); c.FaultHook = faults.Inject }
		simulate(t, 2, configure, func(t *testing.T, group []*agent.Agent) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			opts := []agent.CallOption{agent.WithRetry(agent.Retry{Delay: time.Hour}), agent.WithTimeout(time.Minute)}
			if async {
				hang.Go(ctx, group[0], "worker1", agent.None{}, opts...)
			} else {
				go hang.Call(ctx, group[0], "worker1", agent.None{}, opts...)
			}
			begun := time.Now()
			pass(time.Second)
			require.Equal(t, []agent.CallInfo{{
				To: "worker1", Name: "test.hang", Begun: begun, Limit: time.Minute, State: agent.CallRetrying,
			}}, group[0].Snapshot().Pending)
			require.Equal(t, 1, group[0].Metrics().PendingCalls)
			var text strings.Builder
			require.NoError(t, group[0].Dump(&text))
			require.Contains(t, text.String(), "  #0 test.hang to worker1: 1s, waiting for the next attempt\n")
			cancel()
			synctest.Wait()
			require.Empty(t, group[0].Snapshot().Pending)
		})
	}
}
