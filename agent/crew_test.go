package agent_test

import (
	"fmt"
	"log/slog"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/team"
)

// configOf is the Config of a worker in a process of its own.
func configOf(m *team.Member) agent.Config {
	return agent.Config{Name: m.Name(), Rank: m.Rank, WorldSize: m.World, Rendezvous: m.Store, Logger: slog.New(slog.DiscardHandler)}
}

// joinCrew makes a process a worker. edit may change what it is.
func joinCrew(m *team.Member, edit func(c *agent.Config)) (*agent.Agent, error) {
	c := configOf(m)
	if edit != nil {
		edit(&c)
	}
	return agent.Join(m.Context(), c)
}

// want is an error unless got is what is wanted.
func want(wanted, got any) error {
	if fmt.Sprint(wanted) != fmt.Sprint(got) {
		return fmt.Errorf("want %v, got %v", wanted, got)
	}
	return nil
}
