package agent_test

import (
	"testing"
	"testing/synctest"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// simulate runs f with n workers in a bubble of testing/synctest: over a network in
// memory, in time that passes when all wait.
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

// inMemory has a worker reach others by a network in memory.
func inMemory(c *agent.Config, network *mem.Network) {
	c.Listen = []string{"mem://"}
	c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
		o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}}
		o.Channels = []pipe.ChannelEntry{{Name: "xth", Factory: xth.New()}}
		return pipe.New(o)
	}
}
