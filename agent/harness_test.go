package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// startGroup joins n workers of one process, worker0 to worker<n-1>, on a new store in memory, and
// returns them by rank. configure may change the Config of each; nil changes nothing. Workers and
// store are closed at the end of the test.
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

// simulate runs f in a bubble of testing/synctest with n workers that startGroup joins with
// configure, over a network in memory.
func simulate(t *testing.T, n int, configure func(rank int, c *agent.Config), f func(t *testing.T, group []*agent.Agent)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		network := mem.NewNetwork()
		f(t, startGroup(t, n, func(rank int, c *agent.Config) {
			inMemory(c, network)
			if configure != nil {
				configure(rank, c)
			}
		}))
	})
}

// inMemory makes the worker of c listen and connect only through network, a network in memory.
func inMemory(c *agent.Config, network *mem.Network) {
	c.Listen = []string{"mem://"}
	c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
		o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}}
		o.Channels = []pipe.ChannelEntry{{Name: "xth", Factory: xth.New()}}
		return pipe.New(o)
	}
}

// configOf returns the Config with which the process of m joins the static group of the test: with
// its name and rank, through the store of the test and without logs.
func configOf(m *procgroup.Member) agent.Config {
	return agent.Config{Name: m.Name(), Rank: m.Rank, WorldSize: m.World, Rendezvous: m.Store, Logger: slog.New(slog.DiscardHandler)}
}

// joinMember joins the worker of the process m, with configOf(m) as its Config, which edit may
// change; edit may be nil. The caller closes the agent.
func joinMember(m *procgroup.Member, edit func(c *agent.Config)) (*agent.Agent, error) {
	c := configOf(m)
	if edit != nil {
		edit(&c)
	}
	return agent.Join(m.Context(), c)
}

// want returns nil if got and wanted print the same with fmt, and an error with both otherwise.
func want(wanted, got any) error {
	if fmt.Sprint(wanted) != fmt.Sprint(got) {
		return fmt.Errorf("want %v, got %v", wanted, got)
	}
	return nil
}
