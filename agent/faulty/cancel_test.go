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

// giveUp has two workers, of which one calls a function with a limit of five seconds
// that runs until its context ends, and gives the call up at once. What it says to that
// suffers. seen gets the end of the handler: when it was, and why.
func giveUp(t *testing.T, do faulty.Action, seen func(t *testing.T, after time.Duration, cause error, group []*agent.Agent)) {
	t.Helper()
	var ended chan error // of the bubble
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
		f := wait.Go(ctx, group[0], "worker1", agent.None{}, agent.Timeout(5*time.Second))
		synctest.Wait()
		cancel(enough)
		_, err := f.Wait(t.Context())
		require.ErrorIs(t, err, enough)
		require.Zero(t, time.Since(begun), "whatever becomes of the word")
		require.Equal(t, []faulty.Count{{Matched: 1, Taken: 1}}, faults.Counts())

		cause := <-ended
		seen(t, time.Since(begun), cause, group)
		<-time.NewTimer(time.Hour).C // all that is late has come
		n, err := double.Call(t.Context(), group[0], "worker1", 21)
		require.NoError(t, err)
		require.Equal(t, 42, n)
		require.Zero(t, group[1].Metrics().ServedCalls)
	})
}

// Where the word that nobody waits any more gets lost, a handler ends by its deadline, and
// nobody wants its answer.
func TestLostCancel(t *testing.T) {
	for name, do := range map[string]faulty.Action{"lost": faulty.Drop(), "failed": faulty.Fail(nil)} {
		t.Run(name, func(t *testing.T) {
			giveUp(t, do, func(t *testing.T, after time.Duration, cause error, group []*agent.Agent) {
				require.Equal(t, 5*time.Second, after)
				require.ErrorIs(t, cause, agent.ErrTimeout)
				synctest.Wait()
				require.EqualValues(t, 1, group[0].Metrics().LateAnswers)
			})
		})
	}
}

// Where it is late a handler ends when it comes, and one that has ended by then is past
// harm. More than one such word is as good as one.
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
			giveUp(t, c.do, func(t *testing.T, after time.Duration, cause error, _ []*agent.Agent) {
				require.Equal(t, c.after, after)
				require.ErrorIs(t, cause, c.cause)
			})
		})
	}
}
