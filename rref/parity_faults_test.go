package rref_test

import (
	"errors"
	"maps"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
	"github.com/tensorpipe-go/tensorpipe/agent/torch"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/rref"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// faults is the faults of one case, by PyTorch's names of messages: those of which the first three
// fail, and the delays of others.
type faults struct {
	fail  []string
	delay map[string]time.Duration
}

// rules returns the rules for the faults.
func (f faults) rules(t require.TestingT) []faulty.Rule {
	failing, err := torch.MessageTypes(f.fail...)
	require.NoError(t, err)
	delays := map[string]time.Duration{}
	for name, d := range f.delay {
		types, err := torch.MessageTypes(name)
		require.NoError(t, err)
		for _, typ := range types {
			delays[typ] = d
		}
	}
	return append(faulty.FailFirst(3, failing...), faulty.DelayTypes(delays)...)
}

// withFaults runs the parity case id as a subtest in simulated time: f with four workers, each with
// rules of its own. Only the worker of rank 0 acts, as in PyTorch's tests; f gets it. No reference must
// be left at the end.
func withFaults(t *testing.T, id string, rules []faulty.Rule, f func(t *testing.T, g *group, w worker, faults []*faulty.Faulty)) {
	t.Helper()
	parity.Case(t, id, func(t *testing.T) {
		all := make([]*faulty.Faulty, parityWorld)
		simulate(t, parityWorld, func(rank int, c *agent.Config, _ *rref.Options) {
			var err error
			all[rank], err = faulty.New(faulty.Options{Rules: rules})
			require.NoError(t, err)
			c.FaultHook = all[rank].Inject
		}, func(g *group) {
			f(g.t, g, worker{g.agents[0], g.refs[0], g.t.Context(), 1}, all)
			g.finish()
		})
	})
}

// taken returns the number of messages of each rule of f that had a fault.
func taken(f *faulty.Faulty) (all []int) {
	for _, c := range f.Counts() {
		all = append(all, c.Taken)
	}
	return all
}

// retried is the messages about references that are sent until they have arrived.
var retried = []string{"rref.fork", "rref.accept", "rref.delete", "rref.ask"}

func TestParityFailedMessages(t *testing.T) {
	rules := faulty.FailFirst(3, retried...)
	withFaults(t, "rpc/FaultyAgent.check_failed_messages", rules, func(t *testing.T, g *group, w worker, faults []*faulty.Faulty) {
		types, err := torch.MessageTypes("RREF_FORK_REQUEST", "RREF_CHILD_ACCEPT", "RREF_USER_DELETE")
		require.NoError(t, err)
		require.Equal(t, types, retried[:3])
		f := rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, w.next(1), "aten::add", ones(), ones())
		shared := rref.Remote(w.ctx, w.Agent, w.next(2), dense.addRef, refAndValue[*tensor.Tensor]{f, ones()})
		x, err := f.ToHere(w.ctx)
		requireSum(t, x, err, ones(), ones())
		x, err = shared.ToHere(w.ctx)
		requireSum(t, x, err, ones(), ones(), ones())
		require.NoError(t, f.Release(w.ctx))
		require.NoError(t, shared.Release(w.ctx))
		g.finish()
		for rank, want := range [][]int{{0, 0, 3, 0}, {0, 0, 0, 0}, {3, 0, 3, 0}, {0, 0, 0, 0}} {
			require.Equal(t, rules, faults[rank].Options().Rules)
			require.Equal(t, want, taken(faults[rank]), "worker%d", rank)
		}
	})
}

func TestParityRetries(t *testing.T) {
	forks := faults{fail: []string{"RREF_FORK_REQUEST"}}.rules(t)
	withFaults(t, "rpc/FaultyAgent.retry_fork_request", forks, func(t *testing.T, g *group, w worker, faults []*faulty.Faulty) {
		f := rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, w.next(1), "aten::add", ones(), ones())
		x, err := dense.addRef.Call(w.ctx, w.Agent, w.next(2), refAndValue[*tensor.Tensor]{f, ones()}, agent.WithTimeout(0))
		requireSum(t, x, err, ones(), ones(), ones())
		require.Equal(t, []faulty.Count{{Matched: 4, Taken: 3}}, faults[2].Counts())
		require.NoError(t, f.Release(w.ctx))
		g.requireReleased()
	})
	accepts := append(faults{fail: []string{"RREF_CHILD_ACCEPT"}}.rules(t), faulty.Rule{Types: []string{"rref.ask"}})
	withFaults(t, "rpc/FaultyAgent.retry_child_accept", accepts, func(t *testing.T, g *group, w worker, faults []*faulty.Faulty) {
		f, err := returnRef.Call(w.ctx, w.Agent, w.next(1), string(w.next(2)))
		require.NoError(t, err)
		x, err := f.ToHere(w.ctx)
		requireSum(t, x, err, ones(), 1)
		require.EqualValues(t, 1, g.refs[1].Metrics()["pending_children"], "kept until the reference is accepted")
		g.awaitTrue(func() bool { return g.refs[1].Metrics()["pending_children"] == 0 })
		require.Equal(t, faulty.Count{Matched: 4, Taken: 3}, faults[0].Counts()[0])
		require.Zero(t, faults[1].Counts()[1].Matched, "it was not asked for")
		require.NoError(t, f.Release(w.ctx))
		g.requireReleased()
	})
	deletes := faults{fail: []string{"RREF_USER_DELETE"}}.rules(t)
	deletes = append(deletes, faulty.Rule{Types: deletes[0].Types, Skip: 3, First: 1, Do: faulty.Drop()}) // without an error
	withFaults(t, "rpc/FaultyAgent.retry_user_delete", deletes, func(t *testing.T, g *group, w worker, faults []*faulty.Faulty) {
		kept := rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, w.next(1), "aten::add", ones(), 1)
		f := rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, w.next(1), "aten::add", ones(), 1)
		x, err := f.ToHere(w.ctx)
		requireSum(t, x, err, ones(), 1)
		require.NoError(t, f.Release(w.ctx))
		require.Equal(t, 2, g.refs[1].SharedValues())
		g.awaitTrue(func() bool { return g.refs[1].SharedValues() == 1 })
		require.Equal(t, []faulty.Count{{Matched: 5, Taken: 3}, {Matched: 5, Taken: 1}}, faults[0].Counts())
		x, err = kept.ToHere(w.ctx)
		requireSum(t, x, err, ones(), 1)
	})
}

// awaitTrue lets simulated time pass until done, for at most a few leases, and has the garbage
// collector find forgotten references meanwhile.
func (g *group) awaitTrue(done func() bool) {
	g.t.Helper()
	for range 300 {
		if done() {
			return
		}
		sleep(time.Second)
		runtime.GC()
	}
	require.Fail(g.t, "nothing has changed for too long")
}

// requireReleased lets simulated time pass until no worker has a value or a reference.
func (g *group) requireReleased() {
	g.t.Helper()
	g.awaitTrue(func() bool {
		return !slices.ContainsFunc(g.refs, func(r *rref.Refs) bool { return !maps.Equal(empty, r.Metrics()) })
	})
}

// dropped is the cases of a creation of which the message fails: to the worker that is steps further.
func dropped(create func(w worker, to agent.To) *rref.Ref[*tensor.Tensor], steps int, check func(t *testing.T, w worker, f *rref.Ref[*tensor.Tensor])) func(*testing.T, *group, worker, []*faulty.Faulty) {
	return func(t *testing.T, _ *group, w worker, faults []*faulty.Faulty) {
		f := create(w, w.next(steps))
		_, err := f.Created().Wait(w.ctx)
		requireCreation(t, err)
		require.ErrorIs(t, err, faulty.ErrInjected)
		require.Equal(t, 1, slices.Max(taken(faults[0])))
		check(t, w, f)
		_, err = f.ToHere(w.ctx)
		requireCreation(t, err)
	}
}

// notShared requires that a reference whose creation has failed is not passed to any worker.
func notShared(t *testing.T, w worker, f *rref.Ref[*tensor.Tensor]) {
	for steps := range parityWorld {
		args := refAndValue[*tensor.Tensor]{f, 1}
		_, err := dense.addRef.Call(w.ctx, w.Agent, w.next(steps), args)
		requireCreation(t, err)
		_, err = dense.addRef.Go(w.ctx, w.Agent, w.next(steps), args).Wait(w.ctx)
		requireCreation(t, err)
		var remote *agent.RemoteError
		require.False(t, errors.As(err, &remote), "the error comes before anything is sent")
	}
}

func sleeping(seconds float64, opts ...agent.CallOption) func(w worker, to agent.To) *rref.Ref[*tensor.Tensor] {
	return func(w worker, to agent.To) *rref.Ref[*tensor.Tensor] {
		return rref.Remote(w.ctx, w.Agent, to, sleepFunc, seconds, opts...)
	}
}

func addingOnes(opts ...agent.CallOption) func(w worker, to agent.To) *rref.Ref[*tensor.Tensor] {
	args := []any{integers([]int64{1}), integers([]int64{1})}
	for _, o := range opts {
		args = append(args, o)
	}
	return func(w worker, to agent.To) *rref.Ref[*tensor.Tensor] {
		return rref.RemoteOp[*tensor.Tensor](w.ctx, w.Agent, to, "aten::add", args...)
	}
}

func scripted(opts ...agent.CallOption) func(w worker, to agent.To) *rref.Ref[*tensor.Tensor] {
	args := []any{integers([]int64{1})}
	for _, o := range opts {
		args = append(args, o)
	}
	return func(w worker, to agent.To) *rref.Ref[*tensor.Tensor] {
		return rref.RemoteInvoke[*tensor.Tensor](w.ctx, w.Agent, to, "my_script_func", args...)
	}
}

func TestParityDroppedCreation(t *testing.T) {
	python, builtin := faults{fail: []string{"PYTHON_REMOTE_CALL"}}.rules(t), faults{fail: []string{"SCRIPT_REMOTE_CALL"}}.rules(t)
	nothing := func(*testing.T, worker, *rref.Ref[*tensor.Tensor]) {}
	withFaults(t, "rpc/FaultyAgent.remote_message_dropped_pickle", python, dropped(sleeping(1), 1, notShared))
	withFaults(t, "rpc/FaultyAgent.remote_message_dropped_pickle_to_self", python, dropped(sleeping(1), 0, notShared))
	withFaults(t, "rpc/FaultyAgent.builtin_remote_message_dropped_timeout", builtin, dropped(addingOnes(), 1, nothing))
	withFaults(t, "rpc/FaultyAgent.builtin_remote_message_dropped_timeout_to_self", builtin, dropped(addingOnes(), 0, nothing))
	withFaults(t, "rpc/FaultyAgent.udf_remote_message_dropped_timeout", python, dropped(sleeping(2), 1, nothing))
	withFaults(t, "rpc/FaultyAgent.udf_remote_message_dropped_timeout_to_self", python, dropped(sleeping(2), 0, nothing))
}

// delayedCreation is the cases of a creation of which the message is delayed by more than its limit: to the
// worker that is steps further.
func delayedCreation(create func(...agent.CallOption) func(worker, agent.To) *rref.Ref[*tensor.Tensor], steps int) func(*testing.T, *group, worker, []*faulty.Faulty) {
	return func(t *testing.T, g *group, w worker, faults []*faulty.Faulty) {
		f := create(agent.WithTimeout(time.Millisecond))(w, w.next(steps))
		_, err := f.Created().Wait(w.ctx)
		requireTimeout(t, err, "1 ms")
		_, err = f.ToHere(w.ctx)
		requireCreation(t, err)
		if steps != 0 {
			slow := create(agent.WithTimeout(2*time.Second))(w, w.next(steps))
			_, err = slow.ToHere(w.ctx, agent.WithTimeout(time.Millisecond))
			requireTimeout(t, err, "1 ms")
			require.NotErrorIs(t, err, rref.ErrCreation)
			begun := time.Now()
			_, err = create(agent.WithTimeout(time.Second))(w, w.next(steps)).ToHere(w.ctx)
			requireCreation(t, err)
			require.Equal(t, time.Second, time.Since(begun), "the fetch ends with the creation")
		}
		require.NotZero(t, slices.Max(taken(faults[0])))
		sleep(10 * time.Second) // the messages have arrived
	}
}

func TestParityDelayedCreation(t *testing.T) {
	python := faults{delay: map[string]time.Duration{"PYTHON_REMOTE_CALL": 2 * time.Second}}.rules(t)
	script := faults{delay: map[string]time.Duration{"SCRIPT_REMOTE_CALL": 2 * time.Second, "SCRIPT_RREF_FETCH_CALL": time.Second}}.rules(t)
	sleeps := func(seconds float64) func(...agent.CallOption) func(worker, agent.To) *rref.Ref[*tensor.Tensor] {
		return func(opts ...agent.CallOption) func(worker, agent.To) *rref.Ref[*tensor.Tensor] {
			return sleeping(seconds, opts...)
		}
	}
	withFaults(t, "rpc/FaultyAgent.udf_remote_message_delay_timeout", python, delayedCreation(sleeps(2), 1))
	withFaults(t, "rpc/FaultyAgent.udf_remote_message_delay_timeout_to_self", python, delayedCreation(sleeps(1), 0))
	withFaults(t, "rpc/FaultyAgent.remote_message_builtin_delay_timeout", script, delayedCreation(addingOnes, 1))
	withFaults(t, "rpc/FaultyAgent.remote_message_builtin_delay_timeout_to_self", script, delayedCreation(addingOnes, 0))
	withFaults(t, "rpc/FaultyAgent.remote_message_script_delay_timeout", script, delayedCreation(scripted, 1))
	withFaults(t, "rpc/FaultyAgent.remote_message_script_delay_timeout_to_self", script, delayedCreation(scripted, 0))
	late := faults{delay: map[string]time.Duration{"SCRIPT_RREF_FETCH_CALL": time.Second}}.rules(t)
	withFaults(t, "rpc/FaultyAgent.rref_to_here_timeout", late, func(t *testing.T, _ *group, w worker, _ []*faulty.Faulty) {
		f := addingOnes()(w, w.next(1))
		_, err := f.ToHere(w.ctx, agent.WithTimeout(10*time.Millisecond))
		requireTimeout(t, err, "10 ms")
		x, err := f.ToHere(w.ctx)
		require.NoError(t, err)
		requireEqual(t, integers([]int64{2}), x)
	})
}
