package agent_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

func requireTimeout(t require.TestingT, err error, text string) {
	require.ErrorIs(t, err, agent.ErrTimeout)
	require.Contains(t, torch.Error(err), "RPC ran for more than set timeout ("+text+") and will now be marked with an error")
}

// sleeper calls functions that sleep, both blocking and with futures.
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
	inSimulatedTime(t, "rpc/RpcTest.test_default_timeout_used", serveCore, func(t require.TestingT, w worker) {
		s := sleeper{w, t}
		require.NoError(t, w.SetDefaultTimeout(time.Millisecond))
		requireTimeout(t, s.run(1), "1 ms")
		var all []*agent.Future[[]any]
		for range 10 {
			all = append(all, s.begin(1))
		}
		for _, f := range all {
			_, err := f.Wait(w.ctx)
			requireTimeout(t, err, "1 ms")
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
	inSimulatedTime(t, "rpc/RpcTest.test_rpc_timeouts", serveCore, func(t require.TestingT, w worker) {
		s := sleeper{w, t}
		requireTimeout(t, s.run(1, agent.WithTimeout(100*time.Millisecond)), "100 ms")
		require.NoError(t, s.run(1))
		requireTimeout(t, s.run(61), "60000 ms")
		require.NoError(t, w.SetDefaultTimeout(time.Millisecond))
		requireTimeout(t, s.run(1), "1 ms")
		require.NoError(t, s.run(1, agent.WithTimeout(5*time.Second)))
		require.NoError(t, s.run(1000, agent.WithTimeout(0)))
	})
	inSimulatedTime(t, "rpc/RpcTest.test_set_and_get_default_rpc_timeout", withTimeout(500*time.Millisecond), func(t require.TestingT, w worker) {
		require.Equal(t, 500*time.Millisecond, w.DefaultTimeout())
		requireTimeout(t, sleeper{w, t}.run(1), "500 ms")
	})
	inSimulatedTime(t, "rpc/TensorPipeAgentRpcTest.test_tensorpipe_set_default_timeout", withTimeout(100*time.Second), func(t require.TestingT, w worker) {
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
			require.Equal(t, "27", torch.DebugInfo(a.Metrics())["agent.thread_pool_size"])
			require.Equal(t, "27", torch.DebugInfo(a.Metrics())["agent.num_idle_threads"])
			require.Equal(t, 27, a.Metrics().MaxHandlers)
		}
	})
	parity.Case(t, "rpc/TensorPipeAgentRpcTest.test_tensorpipe_options_throw_on_timedelta_timeout", func(t *testing.T) {
		s := store.NewMemory(store.Limits{})
		defer s.Close()
		_, err := agent.Join(t.Context(), agent.Config{Name: "worker0", WorldSize: 1, Store: s, Timeout: -3 * time.Second})
		require.ErrorIs(t, err, agent.ErrConfig)
		require.Contains(t, torch.Error(err), "RPC Timeout must be non-negative")
		a := startGroup(t, 1, serveCore)[0]
		require.ErrorIs(t, a.SetDefaultTimeout(-time.Second), agent.ErrConfig)
		_, err = a.Invoke(t.Context(), "worker0", "runs", agent.WithTimeout(-time.Second))
		require.ErrorIs(t, err, agent.ErrConfig)
	})
}

// retriedTypes are message types that are sent until they are answered, as for references.
var retriedTypes = []string{"toy.fork", "toy.accept", "toy.delete", "toy.cleanup"}

// acknowledge handles any message by an empty reply.
type acknowledge struct{}

func (acknowledge) Open(r *agent.Request) (agent.Task, error) {
	var n int
	return acknowledge{}, r.Decode(&n)
}

func (acknowledge) Run(_ context.Context, r *agent.Request) { _ = r.Reply(&agent.None{}) }

func (acknowledge) Short() {}

const unreliableHandlers = 8

// withFaults runs s in a subtest, in simulated time, on each of four workers. It passes s the
// worker and the fault injection of that worker, which follows rules.
func withFaults(t *testing.T, id string, rules []faulty.Rule, s func(t require.TestingT, w worker, f *faulty.Faulty)) {
	t.Helper()
	faults := make([]*faulty.Faulty, parityWorld)
	configure := func(rank int, c *agent.Config) {
		var err error
		faults[rank], err = faulty.New(faulty.Options{Rules: rules})
		require.NoError(t, err)
		serveCore(rank, c)
		c.MaxHandlers = unreliableHandlers
		c.FaultHook, c.Handlers = faults[rank].Inject, map[string]agent.Handler{}
		for _, typ := range retriedTypes {
			c.Handlers[typ] = acknowledge{}
		}
	}
	inSimulatedTime(t, id, configure, func(t require.TestingT, w worker) { s(t, w, faults[w.Self().Rank]) })
}

func (w worker) send(typ string, opts ...agent.CallOption) error {
	_, err := agent.NewMessageType[int, agent.None](typ).Call(w.ctx, w.Agent, w.next(1), "", w.n, opts...)
	return err
}

// If fault injection fails the first three messages of a type, a call WithRetry succeeds once those
// have failed, and fault injection counts each attempt.
func TestFailedMessagesAreRetried(t *testing.T) {
	withFaults(t, "four workers", faulty.FailFirst(3, retriedTypes...), func(t require.TestingT, w worker, f *faulty.Faulty) {
		for i, typ := range retriedTypes {
			require.ErrorIs(t, w.send(typ), faulty.ErrInjected)
			require.Equal(t, faulty.Count{Matched: 1, Taken: 1}, f.Counts()[i])
			require.NoError(t, w.send(typ, agent.WithRetry(agent.Retry{})))
			require.Equal(t, faulty.Count{Matched: 4, Taken: 3}, f.Counts()[i], "two more fail, and one is sent")
			require.NoError(t, w.send(typ))
		}
		require.NoError(t, sleeper{w, t}.run(0))
	})
}

func TestParityFaultyOptions(t *testing.T) {
	failing := faulty.FailFirst(3, retriedTypes...)
	// PyTorch's defaults: four types fail three times, and calls of two kinds are delayed.
	late := faulty.DelayTypes(map[string]time.Duration{"agent.invoke": 1500 * time.Millisecond, "aten": 1500 * time.Millisecond})
	withFaults(t, "rpc/FaultyAgent.verify_backend_options", slices.Concat(failing, late), func(t require.TestingT, w worker, f *faulty.Faulty) {
		require.Equal(t, "8", torch.DebugInfo(w.Metrics())["agent.thread_pool_size"])
		require.Equal(t, 8, w.Metrics().MaxHandlers)
		require.Equal(t, time.Minute, w.DefaultTimeout())
		require.Equal(t, []faulty.Rule{
			{Types: []string{"toy.fork"}, First: 3, Do: faulty.Fail(nil)},
			{Types: []string{"toy.accept"}, First: 3, Do: faulty.Fail(nil)},
			{Types: []string{"toy.delete"}, First: 3, Do: faulty.Fail(nil)},
			{Types: []string{"toy.cleanup"}, First: 3, Do: faulty.Fail(nil)},
			{Types: []string{"agent.invoke"}, Do: faulty.Delay(1500 * time.Millisecond)},
			{Types: []string{"aten"}, Do: faulty.Delay(1500 * time.Millisecond)},
		}, f.Options().Rules)
		for i, typ := range retriedTypes { // the options are in effect
			for n := range 3 {
				require.ErrorIs(t, w.send(typ), faulty.ErrInjected)
				require.Equal(t, faulty.Count{Matched: n + 1, Taken: n + 1}, f.Counts()[i])
			}
			require.NoError(t, w.send(typ))
			require.Equal(t, faulty.Count{Matched: 4, Taken: 3}, f.Counts()[i])
		}
		begun := time.Now()
		_, err := w.Invoke(w.ctx, w.next(1), "identity", 1)
		require.NoError(t, err)
		require.Equal(t, 1500*time.Millisecond, time.Since(begun))
		equalTensor(t, integer(2), w.add(t, w.next(1), integer(1), integer(1)).(*tensor.Tensor))
		require.Equal(t, 3000*time.Millisecond, time.Since(begun))
		require.Equal(t, []faulty.Count{{Matched: 1, Taken: 1}, {Matched: 1, Taken: 1}}, f.Counts()[len(retriedTypes):])
	})
	custom := faulty.FailFirst(2, "toy.fork", "toy.delete")
	withFaults(t, "rpc/FaultyAgent.custom_faulty_messages", custom, func(t require.TestingT, w worker, f *faulty.Faulty) {
		require.Equal(t, custom, f.Options().Rules)
		for _, typ := range retriedTypes {
			err := w.send(typ)
			if typ == "toy.fork" || typ == "toy.delete" {
				require.ErrorIs(t, err, faulty.ErrInjected)
				require.Contains(t, torch.Error(err), "RPCErr:2:Send attempt failed intentionally for "+typ)
				continue
			}
			require.NoError(t, err)
		}
	})
	withFaults(t, "rpc/FaultyAgent.no_faulty_messages", nil, func(t require.TestingT, w worker, f *faulty.Faulty) {
		require.Empty(t, f.Options().Rules)
		for _, typ := range retriedTypes {
			require.NoError(t, w.send(typ))
		}
		require.NoError(t, sleeper{w, t}.run(0))
		require.Empty(t, f.Counts())
	})
	delays := map[string]time.Duration{"toy.accept": 2 * time.Second, "toy.cleanup": 3 * time.Second}
	withFaults(t, "rpc/FaultyAgent.custom_messages_to_delay", faulty.DelayTypes(delays), func(t require.TestingT, w worker, f *faulty.Faulty) {
		require.Equal(t, []faulty.Rule{
			{Types: []string{"toy.accept"}, Do: faulty.Delay(2 * time.Second)},
			{Types: []string{"toy.cleanup"}, Do: faulty.Delay(3 * time.Second)},
		}, f.Options().Rules)
		for _, typ := range retriedTypes {
			begun := time.Now()
			require.NoError(t, w.send(typ))
			require.Equal(t, delays[typ], time.Since(begun))
		}
	})
}

// delayedCalls returns a function for withFaults, whose rules must delay each request by 1.5 s. The
// function makes calls with shorter and longer timeouts, by call, which blocks, and by begin, which
// returns a future. It requires that those with a shorter timeout time out, and that the others
// return 2 after the delay.
func delayedCalls(call func(w worker, opts ...any) ([]any, error), begin func(w worker, opts ...any) *agent.Future[[]any]) func(require.TestingT, worker, *faulty.Faulty) {
	return func(t require.TestingT, w worker, f *faulty.Faulty) {
		requireTwo := func(sum *tensor.Tensor, err error) {
			require.NoError(t, err)
			equalTensor(t, integer(2), sum)
		}
		wait := func(opts ...any) ([]any, error) { return begin(w, opts...).Wait(w.ctx) }
		begun := time.Now()
		_, err := call(w, agent.WithTimeout(time.Second))
		requireTimeout(t, err, "1000 ms")
		_, err = wait(agent.WithTimeout(time.Second))
		requireTimeout(t, err, "1000 ms")
		require.Equal(t, 2*time.Second, time.Since(begun))
		requireTwo(agent.One[*tensor.Tensor](wait()))
		require.Equal(t, 3500*time.Millisecond, time.Since(begun))
		require.NoError(t, w.SetDefaultTimeout(time.Millisecond))
		_, err = wait()
		requireTimeout(t, err, "1 ms")
		requireTwo(agent.One[*tensor.Tensor](wait(agent.WithTimeout(0))))
		requireTwo(agent.One[*tensor.Tensor](call(w, agent.WithTimeout(0))))
		require.Equal(t, 6501*time.Millisecond, time.Since(begun))
		taken := 0
		for _, c := range f.Counts() {
			taken += c.Taken
		}
		require.Equal(t, 6, taken)
	}
}

func TestParityFaultyTimeouts(t *testing.T) {
	const late = 1500 * time.Millisecond
	sum := func(opts []any) []any { return append([]any{integer(1), integer(1)}, opts...) }
	withFaults(t, "rpc/FaultyAgent.rpc_builtin_timeout", faulty.DelayTypes(map[string]time.Duration{"agent.invoke": late, "aten": late}), delayedCalls(
		func(w worker, opts ...any) ([]any, error) { return w.Op(w.ctx, w.next(1), "aten::add", sum(opts)...) },
		func(w worker, opts ...any) *agent.Future[[]any] {
			return w.OpAsync(w.ctx, w.next(1), "aten::add", sum(opts)...)
		}))
	doubled := func(opts []any) []any { return append([]any{integer(1)}, opts...) }
	withFaults(t, "rpc/FaultyAgent.rpc_script_timeout", faulty.DelayTypes(map[string]time.Duration{"agent.invoke": late}), delayedCalls(
		func(w worker, opts ...any) ([]any, error) {
			return w.Invoke(w.ctx, w.next(1), "my_script_func", doubled(opts)...)
		},
		func(w worker, opts ...any) *agent.Future[[]any] {
			return w.InvokeAsync(w.ctx, w.next(1), "my_script_func", doubled(opts)...)
		}))
}
