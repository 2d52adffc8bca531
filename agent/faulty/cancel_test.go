package faulty_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
)

// runCancelledCall starts two workers. One calls a function at the other with a timeout of five
// seconds, whose handler runs until its context ends, and cancels the call at once; the action do
// applies to the cancellation message. runCancelledCall requires the call to end at once. When the
// handler has ended, it calls seen with the time since the call and the cause, and then requires
// that a further call succeeds.
func runCancelledCall(t *testing.T, do faulty.Action, seen func(t *testing.T, after time.Duration, cause error, group []*agent.Agent)) {
	t.Helper()
	var ended chan error // made in the bubble
	funcs := append(serveDouble(), wait.Serve(func(ctx context.Context, _ agent.None) (int, error) {
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return 0, context.Cause(ctx)
	}))
	rules := []faulty.Rule{{Kinds: []agent.Kind{agent.KindCancel}, Func: "test.wait", Do: do}}
	simulate(t, 2, funcs, rules, func(t *testing.T, group []*agent.Agent, faults *faulty.Faulty) {
		ended = make(chan error, 1)
		begun, enough := time.Now(), errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		f := wait.Go(ctx, group[0], "worker1", agent.None{}, agent.WithTimeout(5*time.Second))
		synctest.Wait()
		cancel(enough)
		_, err := f.Wait(t.Context())
		require.ErrorIs(t, err, enough)
		require.Zero(t, time.Since(begun), "whatever happens to the message")
		require.Equal(t, []faulty.Count{{Matched: 1, Taken: 1}}, faults.Counts())

		cause := <-ended
		seen(t, time.Since(begun), cause, group)
		<-time.NewTimer(time.Hour).C // all delayed messages have arrived
		n, err := double.Call(t.Context(), group[0], "worker1", 21)
		require.NoError(t, err)
		require.Equal(t, 42, n)
		synctest.Wait() // the server has seen the end of its write
		require.Zero(t, group[1].Metrics().ServedCalls)
	})
}

// TestLostCancel checks that if the cancellation message is lost or cannot be sent, the handler
// ends with ErrTimeout at its deadline, and its late reply is counted and ignored.
func TestLostCancel(t *testing.T) {
	for name, do := range map[string]faulty.Action{"lost": faulty.Drop(), "failed": faulty.Fail(nil)} {
		t.Run(name, func(t *testing.T) {
			runCancelledCall(t, do, func(t *testing.T, after time.Duration, cause error, group []*agent.Agent) {
				require.Equal(t, 5*time.Second, after)
				require.ErrorIs(t, cause, agent.ErrTimeout)
				synctest.Wait()
				require.EqualValues(t, 1, group[0].Metrics().LateReplies)
			})
		})
	}
}

// TestLateCancel checks that if the cancellation message is delayed, the handler ends when it
// arrives, or at its deadline if that is earlier. A second cancellation message has no further
// effect.
func TestLateCancel(t *testing.T) {
	for name, c := range map[string]struct {
		do    faulty.Action
		after time.Duration
		cause error
	}{
		"late":     {faulty.Delay(2 * time.Second), 2 * time.Second, agent.ErrCallerGone},
		"too late": {faulty.Delay(time.Minute), 5 * time.Second, agent.ErrTimeout},
		"twice":    {faulty.Duplicate(), 0, agent.ErrCallerGone},
	} {
		t.Run(name, func(t *testing.T) {
			runCancelledCall(t, c.do, func(t *testing.T, after time.Duration, cause error, _ []*agent.Agent) {
				require.Equal(t, c.after, after)
				require.ErrorIs(t, cause, c.cause)
			})
		})
	}
}
