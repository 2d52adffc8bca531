package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/parity"
)

func requireTimeout(t require.TestingT, err error, text string) {
	require.ErrorIs(t, err, agent.ErrTimeout)
	require.ErrorContains(t, err, "RPC ran for more than set timeout ("+text+") and will now be marked with an error")
}

// sleeper is what calls functions that take a while, in both ways.
type sleeper struct {
	worker
	t require.TestingT
}

func (s sleeper) run(seconds float64, opts ...agent.CallOption) error {
	_, err := s.Invoke(s.ctx, s.next(1), "my_sleep_func", s.args(seconds, opts)...)
	_, later := s.begin(seconds, opts...).Wait(s.ctx)
	require.Equal(s.t, err == nil, later == nil, "%v and %v", err, later)
	return err
}

func (s sleeper) begin(seconds float64, opts ...agent.CallOption) *agent.Future[[]any] {
	return s.InvokeAsync(s.ctx, s.next(1), "my_sleep_func", s.args(seconds, opts)...)
}

func (s sleeper) args(seconds float64, opts []agent.CallOption) []any {
	args := []any{seconds}
	for _, o := range opts {
		args = append(args, o)
	}
	return args
}

func TestParityTimeouts(t *testing.T) {
	inTime(t, "rpc/RpcTest.test_default_timeout_used", serveCore, func(t require.TestingT, w worker) {
		s := sleeper{w, t}
		require.NoError(t, w.SetDefaultTimeout(time.Millisecond))
		for range 10 {
			requireTimeout(t, s.run(1), "1 ms")
		}
		require.NoError(t, w.SetDefaultTimeout(200*time.Second))
		long := s.begin(100)
		require.NoError(t, w.SetDefaultTimeout(time.Millisecond))
		_, err := s.begin(100).Wait(w.ctx)
		requireTimeout(t, err, "1 ms")
		_, err = long.Wait(w.ctx)
		require.NoError(t, err)
		require.NoError(t, w.SetDefaultTimeout(0))
		require.NoError(t, s.run(10_000))
	})
	inTime(t, "rpc/RpcTest.test_rpc_timeouts", serveCore, func(t require.TestingT, w worker) {
		s := sleeper{w, t}
		requireTimeout(t, s.run(1, agent.Timeout(100*time.Millisecond)), "100 ms")
		require.NoError(t, s.run(1))
		requireTimeout(t, s.run(61), "60000 ms")
		require.NoError(t, w.SetDefaultTimeout(time.Millisecond))
		requireTimeout(t, s.run(1), "1 ms")
		require.NoError(t, s.run(1, agent.Timeout(5*time.Second)))
		require.NoError(t, s.run(1000, agent.Timeout(0)))
	})
	inTime(t, "rpc/RpcTest.test_set_and_get_default_rpc_timeout", withTimeout(500*time.Millisecond), func(t require.TestingT, w worker) {
		require.Equal(t, 500*time.Millisecond, w.DefaultTimeout())
		requireTimeout(t, sleeper{w, t}.run(1), "500 ms")
	})
	inTime(t, "rpc/TensorPipeAgentRpcTest.test_tensorpipe_set_default_timeout", withTimeout(100*time.Second), func(t require.TestingT, w worker) {
		require.Equal(t, 100*time.Second, w.DefaultTimeout())
		require.NoError(t, sleeper{w, t}.run(99))
		requireTimeout(t, sleeper{w, t}.run(101), "100000 ms")
	})
}

func withTimeout(d time.Duration) func(int, *agent.Config) {
	return func(rank int, c *agent.Config) {
		serveCore(rank, c)
		c.Timeout = d
	}
}

func TestParityOptions(t *testing.T) {
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_set_and_get_num_worker_threads", func(t *testing.T) {
		group := startGroup(t, parityWorld, func(_ int, c *agent.Config) { c.MaxHandlers = 27 })
		for _, a := range group {
			require.Equal(t, "27", a.DebugInfo()["agent.thread_pool_size"])
			require.Equal(t, "27", a.DebugInfo()["agent.num_idle_threads"])
			require.Equal(t, 27, a.Metrics().MaxHandlers)
		}
	})
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_tensorpipe_options_throw_on_timedelta_timeout", func(t *testing.T) {
		s := store.NewMemory(store.Limits{})
		defer s.Close()
		_, err := agent.Join(t.Context(), agent.Config{Name: "worker0", WorldSize: 1, Store: s, Timeout: -3 * time.Second})
		require.ErrorIs(t, err, agent.ErrConfig)
		require.ErrorContains(t, err, "RPC Timeout must be non-negative")
		a := startGroup(t, 1, serveCore)[0]
		require.ErrorIs(t, a.SetDefaultTimeout(-time.Second), agent.ErrConfig)
		_, err = a.Invoke(t.Context(), "worker0", "runs", agent.Timeout(-time.Second))
		require.ErrorIs(t, err, agent.ErrConfig)
	})
}

// retryable are the types of messages that are sent again until they are answered,
// as those of references are.
var retryable = []string{"toy.fork", "toy.accept", "toy.delete", "toy.cleanup"}

// acknowledge answers any message, and counts.
type acknowledge struct{ seen map[string]int }

func (k acknowledge) Open(r *agent.Request) (agent.Task, error) {
	var n int
	return k, r.Decode(&n)
}

func (k acknowledge) Run(_ context.Context, r *agent.Request) {
	k.seen[r.Type()]++
	_ = r.Reply(&agent.None{})
}

func (acknowledge) Short() {}

const unreliableHandlers = 8

// unreliable runs a parity case with four workers whose messages suffer, one after the
// other.
func unreliable(t *testing.T, id string, rules []faulty.Rule, s func(t *testing.T, w worker, f *faulty.Faulty)) {
	t.Helper()
	parity.Case(t, id, func(t *testing.T) {
		faults := make([]*faulty.Faulty, parityWorld)
		configure := func(rank int, c *agent.Config) {
			var err error
			faults[rank], err = faulty.New(faulty.Options{Rules: rules})
			require.NoError(t, err)
			serveCore(rank, c)
			c.MaxHandlers = unreliableHandlers
			c.Outgoing, c.Handlers = faults[rank].Outgoing, map[string]agent.Handler{}
			seen := acknowledge{map[string]int{}}
			for _, typ := range retryable {
				c.Handlers[typ] = seen
			}
		}
		simulate(t, parityWorld, configure, func(t *testing.T, group []*agent.Agent) {
			for rank, a := range group {
				s(t, worker{Agent: a, ctx: t.Context(), n: rank + 1}, faults[rank])
			}
		})
	})
}

func (w worker) send(typ string, opts ...agent.CallOption) error {
	_, err := agent.NewTyped[int, agent.None](typ).Call(w.ctx, w.Agent, w.next(1), "", w.n, opts...)
	return err
}

func TestParityFaultyOptions(t *testing.T) {
	failing := faulty.FailFirst(3, retryable...)
	unreliable(t, "rpc/FaultyAgent.check_failed_messages", failing, func(t *testing.T, w worker, f *faulty.Faulty) {
		for i, typ := range retryable {
			require.ErrorIs(t, w.send(typ), faulty.ErrInjected)
			require.Equal(t, faulty.Count{Matched: 1, Taken: 1}, f.Counts()[i])
			require.NoError(t, w.send(typ, agent.WithRetry(agent.Retry{})))
			require.Equal(t, faulty.Count{Matched: 4, Taken: 3}, f.Counts()[i], "two more fail, and one gets through")
			require.NoError(t, w.send(typ))
		}
		require.NoError(t, sleeper{w, t}.run(0))
	})
	unreliable(t, "rpc/FaultyAgent.verify_backend_options", failing, func(t *testing.T, w worker, f *faulty.Faulty) {
		require.Equal(t, "8", w.DebugInfo()["agent.thread_pool_size"])
		require.Equal(t, unreliableHandlers, w.Metrics().MaxHandlers)
		require.Equal(t, time.Minute, w.DefaultTimeout())
		require.Equal(t, failing, f.Options().Rules)
		for i, typ := range retryable { // they are what the agent does
			for n := range 3 {
				require.ErrorIs(t, w.send(typ), faulty.ErrInjected)
				require.Equal(t, faulty.Count{Matched: n + 1, Taken: n + 1}, f.Counts()[i])
			}
			require.NoError(t, w.send(typ))
			require.Equal(t, faulty.Count{Matched: 4, Taken: 3}, f.Counts()[i])
		}
	})
	custom := faulty.FailFirst(2, "toy.fork", "toy.delete")
	unreliable(t, "rpc/FaultyAgent.custom_faulty_messages", custom, func(t *testing.T, w worker, f *faulty.Faulty) {
		require.Equal(t, custom, f.Options().Rules)
		for _, typ := range retryable {
			err := w.send(typ)
			if typ == "toy.fork" || typ == "toy.delete" {
				require.ErrorContains(t, err, "RPCErr:2:Send attempt failed intentionally for "+typ)
				continue
			}
			require.NoError(t, err)
		}
	})
	unreliable(t, "rpc/FaultyAgent.no_faulty_messages", nil, func(t *testing.T, w worker, f *faulty.Faulty) {
		require.Empty(t, f.Options().Rules)
		for _, typ := range retryable {
			require.NoError(t, w.send(typ))
		}
		require.NoError(t, sleeper{w, t}.run(0))
		require.Empty(t, f.Counts())
	})
	delays := map[string]time.Duration{"toy.accept": 2 * time.Second, "toy.cleanup": 3 * time.Second}
	unreliable(t, "rpc/FaultyAgent.custom_messages_to_delay", faulty.DelayTypes(delays), func(t *testing.T, w worker, f *faulty.Faulty) {
		require.Equal(t, []faulty.Rule{
			{Types: []string{"toy.accept"}, Do: faulty.Delay(2 * time.Second)},
			{Types: []string{"toy.cleanup"}, Do: faulty.Delay(3 * time.Second)},
		}, f.Options().Rules)
		for _, typ := range retryable {
			begun := time.Now()
			require.NoError(t, w.send(typ))
			require.Equal(t, delays[typ], time.Since(begun))
		}
	})
}

// Timeouts of calls that arrive late.
func TestParityFaultyTimeouts(t *testing.T) {
	timeouts := func(call func(w worker, opts ...any) *agent.Future[[]any]) func(t *testing.T, w worker, f *faulty.Faulty) {
		return func(t *testing.T, w worker, f *faulty.Faulty) {
			run := func(opts ...any) error {
				_, err := call(w, opts...).Wait(w.ctx)
				return err
			}
			requireTimeout(t, run(agent.Timeout(time.Second)), "1000 ms")
			begun := time.Now()
			require.NoError(t, run())
			require.Equal(t, 1500*time.Millisecond, time.Since(begun))
			require.NoError(t, w.SetDefaultTimeout(time.Millisecond))
			requireTimeout(t, run(), "1 ms")
			require.NoError(t, run(agent.Timeout(0)))
			synctest.Wait()
			require.Equal(t, 4, f.Counts()[0].Taken)
		}
	}
	unreliable(t, "rpc/FaultyAgent.rpc_builtin_timeout", faulty.DelayTypes(map[string]time.Duration{"aten": 1500 * time.Millisecond}), timeouts(func(w worker, opts ...any) *agent.Future[[]any] {
		return w.OpAsync(w.ctx, w.next(1), "aten::add", append([]any{full(1, 2, 2), full(1, 2, 2)}, opts...)...)
	}))
	unreliable(t, "rpc/FaultyAgent.rpc_script_timeout", []faulty.Rule{{Func: "identity", Do: faulty.Delay(1500 * time.Millisecond)}}, timeouts(func(w worker, opts ...any) *agent.Future[[]any] {
		return w.InvokeAsync(w.ctx, w.next(1), "identity", append([]any{1}, opts...)...)
	}))
}
