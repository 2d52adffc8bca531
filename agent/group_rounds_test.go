package agent

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// The leader keeps only the failure of a failed round, and not the contributions. It forgets the
// round once it has sent the failure to all members.
func TestFailedRoundReleasesContributions(t *testing.T) {
	here := make(chan struct{}, 8)
	group := joinInternal(t, 3, func(_ int, c *Config) {
		c.Interceptors = []Interceptor{{Decoded: func(_ context.Context, m *Message) error {
			if m.Kind == KindRequest && m.Type == wire.GroupType {
				here <- struct{}{}
			}
			return nil
		}}}
	})
	gatherIn := func(ctx context.Context, a *Agent) <-chan error {
		return testwait.Start(func() error {
			_, err := AllGather(ctx, a, make([]byte, 100))
			return err
		})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	waiting := []<-chan error{gatherIn(t.Context(), group[0]), gatherIn(ctx, group[1])}
	testwait.Finish(t, here)
	testwait.Finish(t, here)
	cancel(errors.New("tired"))
	for _, ch := range waiting {
		require.Error(t, testwait.Finish(t, ch))
	}
	left := keptRounds(group[0])
	require.Len(t, left, 1, "the third has not been sent the failure")
	require.NotNil(t, left[0].failure)
	for _, g := range left[0].states {
		require.Zero(t, g.contribution.value)
		require.Nil(t, g.contribution.request)
		require.Nil(t, g.contribution.stop)
	}
	require.ErrorIs(t, testwait.Finish(t, gatherIn(t.Context(), group[2])), ErrCallerGone)
	require.Empty(t, keptRounds(group[0]))
}

// keptRounds returns copies of the rounds that a leads and has not removed, with copies of their
// states.
func keptRounds(a *Agent) (all []round) {
	a.rounds.mu.Lock()
	defer a.rounds.mu.Unlock()
	for _, rd := range a.rounds.open {
		kept := *rd
		kept.states = slices.Clone(rd.states)
		all = append(all, kept)
	}
	return all
}
