package agent_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/team"
)

// Workers meet without clients, which call and are called all the same.
func TestClientsAreLeftOut(t *testing.T) {
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
		require.NoError(t, group[0].Barrier(t.Context(), "worker0", "worker2"), "those who are named meet")
		require.NoError(t, <-met)
	})
}

func TestNoClientsOfAStaticGroup(t *testing.T) {
	c := member(memoryStore(t), 0, 1)
	c.Client = true
	_, err := agent.Join(t.Context(), c)
	require.ErrorIs(t, err, agent.ErrConfig)
	require.ErrorContains(t, err, "a static group of 1 has no clients")
}

// A client that is killed during a call ends nothing of others, and is off the list soon.
func TestKilledClient(t *testing.T) {
	crew := team.Start(t, 3, func(m *team.Member) error {
		a, err := joinCrew(m, func(c *agent.Config) {
			serveStuck(m)(c)
			c.WorldSize, c.Client = 0, m.Rank == 2
		})
		if err != nil {
			return err
		}
		m.Say("joined")
		if err := m.Await("go on"); err != nil {
			return err
		}
		if m.Rank == 2 {
			_, err := stuck.Call(m.Context(), a, "worker0", "worker2", agent.Timeout(0))
			return err
		}
		err = a.Barrier(m.Context())
		m.Say("met")
		return errors.Join(err, m.Await("killed"), a.Barrier(m.Context()), missing(m.Context(), a, "worker2"), a.Shutdown(m.Context()))
	})
	crewSays(crew, 3, "joined")
	crew.Tell(2, "go on")
	crew.Await(0, "stuck for worker2")
	crew.Tell(0, "go on")
	crew.Tell(1, "go on")
	crewSays(crew, 2, "met")
	crew.Kill(2)
	crew.Tell(0, "killed")
	crew.Tell(1, "killed")
	crew.Wait()
}

// missing waits until a worker is off the list.
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
