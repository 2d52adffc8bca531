package agent_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/procgroup"
)

// With env:// workers join with the rank, the world size and the store that the environment
// variables of torchrun name. Rank and WorldSize of their Config are ignored.
func TestJoinByEnvironment(t *testing.T) {
	const world = 3
	addr := freeport.Addr(t) // of the first process
	group := procgroup.Start(t, world, func(m *procgroup.Member) error {
		addr, err := m.ReadLine()
		if err != nil {
			return err
		}
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return err
		}
		for name, value := range map[string]string{
			"RANK": fmt.Sprint(m.Rank), "WORLD_SIZE": fmt.Sprint(world), "MASTER_ADDR": host, "MASTER_PORT": port,
		} {
			err = errors.Join(err, os.Setenv(name, value))
		}
		if err != nil {
			return err
		}
		a, err := joinMember(m, func(c *agent.Config) {
			c.Rendezvous, c.Rank, c.WorldSize = "env://", 7, 0
			serveDouble(m.Rank, c)
		})
		if err != nil {
			return err
		}
		err = want(agent.WorkerInfo{Name: m.Name(), Rank: m.Rank}, a.Self())
		for rank := range world {
			n, callErr := double.Call(m.Context(), a, agent.Rank(rank), 21)
			err = errors.Join(err, callErr, want(42, n))
		}
		return errors.Join(err, a.Shutdown(m.Context()))
	})
	group.SendAll(addr)
	for rank := range world {
		require.NoError(t, group.WaitExit(rank))
	}
}
