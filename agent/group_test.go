package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// startGroup joins n workers of one process, worker0 to worker<n-1>, on a store of
// their own. configure may change what each is.
func startGroup(t testing.TB, n int, configure func(rank int, c *agent.Config)) []*agent.Agent {
	t.Helper()
	s := store.NewMemory(store.Limits{})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	agents := make([]*agent.Agent, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for rank := range n {
		c := agent.Config{Name: fmt.Sprintf("worker%d", rank), Rank: rank, WorldSize: n, Store: s, Logger: slog.New(slog.DiscardHandler)}
		if configure != nil {
			configure(rank, &c)
		}
		wg.Go(func() { agents[rank], errs[rank] = agent.Join(ctx, c) })
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, a := range agents {
			if a != nil {
				require.NoError(t, a.Close())
			}
		}
	})
	for _, err := range errs {
		require.NoError(t, err)
	}
	return agents
}
