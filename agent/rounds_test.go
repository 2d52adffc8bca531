package agent

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

// Of a round that failed nothing stays but why it did, and that until all know.
func TestFailedRoundKeepsNothing(t *testing.T) {
	here := make(chan struct{}, 8)
	group := insiders(t, 3, func(_ int, c *Config) {
		c.Interceptors = []Interceptor{{Decoded: func(_ context.Context, m *Message) error {
			if m.Kind == KindRequest && m.Type == groupType {
				here <- struct{}{}
			}
			return nil
		}}}
	})
	gatherIn := func(ctx context.Context, a *Agent) <-chan error {
		return patience.Start(func() error {
			_, err := AllGather(ctx, a, make([]byte, 100))
			return err
		})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	waiting := []<-chan error{gatherIn(t.Context(), group[0]), gatherIn(ctx, group[1])}
	patience.Finish(t, here)
	patience.Finish(t, here)
	cancel(errors.New("tired"))
	for _, ch := range waiting {
		require.Error(t, patience.Finish(t, ch))
	}
	left := remembered(group[0])
	require.Len(t, left, 1, "the third does not know")
	require.NotNil(t, left[0].failure)
	for _, g := range left[0].guests {
		require.Zero(t, g.seat.value)
		require.Nil(t, g.seat.request)
		require.Nil(t, g.seat.stop)
	}
	require.ErrorIs(t, patience.Finish(t, gatherIn(t.Context(), group[2])), ErrCallerGone)
	require.Empty(t, remembered(group[0]))
}

// remembered is the rounds that a worker leads and has not forgotten.
func remembered(a *Agent) (all []round) {
	a.rounds.mu.Lock()
	defer a.rounds.mu.Unlock()
	for _, rd := range a.rounds.open {
		kept := *rd
		kept.guests = slices.Clone(rd.guests)
		all = append(all, kept)
	}
	return all
}
