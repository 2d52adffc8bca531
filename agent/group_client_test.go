package agent_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
)

// Barriers and Workers leave clients out, but a barrier that names a client includes it. Clients
// can call and be called.
func TestGroupRoundsWithoutClients(t *testing.T) {
	configure := func(rank int, c *agent.Config) {
		c.WorldSize, c.Client = 0, rank == 2
		serveDouble(rank, c)
	}
	simulate(t, 3, configure, func(t *testing.T, group []*agent.Agent) {
		client := group[2]
		for _, call := range []struct {
			from *agent.Agent
			to   agent.To
		}{{client, "worker0"}, {client, "worker2"}, {group[1], "worker2"}, {group[1], agent.Rank(2)}} {
			n, err := double.Call(t.Context(), call.from, call.to, 21)
			require.NoError(t, err)
			require.Equal(t, 42, n)
		}
		for _, a := range group {
			infos, err := a.Workers(t.Context())
			require.NoError(t, err)
			require.Equal(t, []agent.WorkerInfo{group[0].Self(), group[1].Self()}, infos)
		}
		met := make(chan error)
		go func() { met <- group[1].Barrier(t.Context()) }()
		require.NoError(t, group[0].Barrier(t.Context()))
		require.NoError(t, <-met)
		require.ErrorIs(t, client.Barrier(t.Context()), agent.ErrConfig)
		go func() { met <- client.Barrier(t.Context(), "worker0", "worker2") }()
		require.NoError(t, group[0].Barrier(t.Context(), "worker0", "worker2"), "a client that is named takes part")
		require.NoError(t, <-met)
	})
}

func TestStaticGroupRejectsClients(t *testing.T) {
	c := member(memoryStore(t), 0, 1)
	c.Client = true
	_, err := agent.Join(t.Context(), c)
	require.ErrorIs(t, err, agent.ErrConfig)
	require.ErrorContains(t, err, "a static group of 1 has no clients")
}

// If a client is killed during a call, the barriers of the group succeed, and the client is soon
// off the member list.
func TestKilledClient(t *testing.T) {
	t.Parallel()
	group := procgroup.Start(t, 3, func(m *procgroup.Member) error {
		a, err := joinMember(m, func(c *agent.Config) {
			serveStuck(m)(c)
			c.WorldSize, c.Client = 0, m.Rank == 2
		})
		if err != nil {
			return err
		}
		m.Send("joined")
		if err := m.WaitFor("go on"); err != nil {
			return err
		}
		if m.Rank == 2 {
			_, err := stuck.Call(m.Context(), a, "worker0", "worker2", agent.WithTimeout(0))
			return err
		}
		err = a.Barrier(m.Context())
		m.Send("met")
		return errors.Join(err, m.WaitFor("killed"), a.Barrier(m.Context()), missing(m.Context(), a, "worker2"), a.Shutdown(m.Context()))
	})
	waitForLines(group, 3, "joined")
	group.Send(2, "go on")
	group.WaitFor(0, "stuck for worker2")
	group.Send(0, "go on")
	group.Send(1, "go on")
	waitForLines(group, 2, "met")
	group.Kill(2)
	group.Send(0, "killed")
	group.Send(1, "killed")
	group.Wait()
}

// missing polls until a does not know the worker any more, and returns nil. It returns an error
// that wraps the error of ctx if ctx ends first.
func missing(ctx context.Context, a *agent.Agent, worker agent.To) error {
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		_, err := a.Worker(ctx, worker)
		if errors.Is(err, agent.ErrNoWorker) {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("%s is still listed: %w", worker, ctx.Err())
		}
	}
}
