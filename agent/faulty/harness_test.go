package faulty_test

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/faulty"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// simulate starts n workers that serve funcs, in a bubble of testing/synctest, and calls f with
// them. The rules apply to the messages of all workers. The workers are closed when f has returned.
func simulate(t *testing.T, n int, funcs agent.Funcs, rules []faulty.Rule, f func(t *testing.T, group []*agent.Agent, faults *faulty.Faulty)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		faults, err := faulty.New(faulty.Options{Rules: rules, Seed: 1})
		require.NoError(t, err)
		f(t, join(t, n, funcs, faults), faults)
	})
}

func join(t *testing.T, n int, funcs agent.Funcs, faults *faulty.Faulty) []*agent.Agent {
	t.Helper()
	s := store.NewMemory(store.Limits{})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	network := mem.NewNetwork()
	group, errs := make([]*agent.Agent, n), make([]error, n)
	var all sync.WaitGroup
	for rank := range n {
		all.Go(func() {
			group[rank], errs[rank] = agent.Join(context.Background(), agent.Config{
				Name: "worker" + strconv.Itoa(rank), Rank: rank, WorldSize: n, Store: s,
				Listen: []string{"mem://"}, NewContext: inMemory(network),
				Funcs: funcs, FaultHook: faults.Inject,
				Logger: slog.New(slog.DiscardHandler),
			})
		})
	}
	all.Wait()
	t.Cleanup(func() {
		for _, a := range group {
			require.NoError(t, a.Close())
		}
	})
	for _, err := range errs {
		require.NoError(t, err)
	}
	return group
}

func inMemory(network *mem.Network) func(pipe.Options) (*pipe.Context, error) {
	return func(o pipe.Options) (*pipe.Context, error) {
		o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}}
		o.Channels = []pipe.ChannelEntry{{Name: "xth", Factory: xth.New()}}
		return pipe.New(o)
	}
}
