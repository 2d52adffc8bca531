package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// joinInternal joins n workers of one process, worker0 to worker<n-1>, on a new store, and returns
// them by rank. It is for tests in package agent. edit may change the Config of each; nil changes
// nothing. Workers and store are closed at the end of the test.
func joinInternal(t *testing.T, n int, edit func(rank int, c *Config)) []*Agent {
	t.Helper()
	s := store.NewMemory(store.Limits{})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	group, errs := make([]*Agent, n), make([]error, n)
	var wg sync.WaitGroup
	for rank := range n {
		c := Config{Name: fmt.Sprintf("worker%d", rank), Rank: rank, WorldSize: n, Store: s, Logger: slog.New(slog.DiscardHandler)}
		if edit != nil {
			edit(rank, &c)
		}
		wg.Go(func() { group[rank], errs[rank] = Join(ctx, c) })
	}
	wg.Wait()
	for rank, a := range group {
		require.NoError(t, errs[rank])
		t.Cleanup(func() { require.NoError(t, a.Close()) })
	}
	return group
}
