package agent_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/simnet"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// overSlowLinks is simulate over links that are subject to rules.
func overSlowLinks(t *testing.T, n int, configure func(rank int, c *agent.Config), f func(t *testing.T, group []*agent.Agent, network *simnet.Network), rules ...simnet.Rule) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		network := simnet.New(mem.New(mem.NewNetwork()), rules...)
		f(t, startGroup(t, n, func(rank int, c *agent.Config) {
			configure(rank, c)
			c.Listen = []string{"mem://"}
			c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
				o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: network}}
				o.Channels = []pipe.ChannelEntry{{Name: "basic", Factory: basic.New()}}
				return pipe.New(o)
			}
		}), network)
	})
}

var bulky = agent.NewFunc[int, *tensor.Tensor]("test.bulky")

func serveBulky(rank int, c *agent.Config) {
	serveDouble(rank, c)
	c.Funcs = append(c.Funcs, bulky.Serve(func(_ context.Context, n int) (*tensor.Tensor, error) { return tensor.Zeros(tensor.U8, n) }))
}

// A call whose time is over while a large answer comes ends then. The pipe stays, for
// other calls too, and neither end keeps anything.
func TestDeadlineWhileTheAnswerComes(t *testing.T) {
	const perSecond, limit = 1 << 20, 5 * time.Second
	overSlowLinks(t, 2, serveBulky, func(t *testing.T, group []*agent.Agent, network *simnet.Network) {
		_, err := bulky.Call(t.Context(), group[0], "worker1", perSecond) // which opens what large answers need
		require.NoError(t, err)
		links := len(network.Links())
		for name, call := range map[string]func(n int) error{
			"call": func(n int) error {
				_, err := bulky.Call(t.Context(), group[0], "worker1", n, agent.Timeout(limit))
				return err
			},
			"future": func(n int) error {
				_, err := bulky.Go(t.Context(), group[0], "worker1", n, agent.Timeout(limit)).Wait(t.Context())
				return err
			},
		} {
			for range 3 {
				begun, ended := time.Now(), make(chan error, 1)
				go func() { ended <- call(20 * perSecond) }()
				<-time.NewTimer(limit - time.Second).C
				calls := group[0].PendingCalls()
				require.Len(t, calls, 1, name)
				require.Equal(t, agent.CallReading, calls[0].State, name)
				err := <-ended
				require.Equal(t, limit, time.Since(begun), name)
				checkTimeout(t, err, limit, "(5000 ms)")
			}
			n, err := double.Call(t.Context(), group[0], "worker1", 21)
			require.NoError(t, err)
			require.Equal(t, 42, n)
			x, err := bulky.Call(t.Context(), group[0], "worker1", perSecond)
			require.NoError(t, err)
			require.Equal(t, perSecond, x.Len())
		}
		synctest.Wait()
		require.Len(t, network.Links(), links, "it is the same pipe")
		for _, a := range group {
			m := a.Metrics()
			require.Zero(t, m.PendingCalls)
			require.Zero(t, m.ServedCalls)
			require.Equal(t, 1, m.Pipes)
		}
	}, simnet.Rate(perSecond))
}

// tardy takes its time to find memory.
type tardy struct {
	tensor.Heap
	delay time.Duration
}

func (a *tardy) Alloc(size int) (*tensor.Storage, error) {
	<-time.NewTimer(a.delay).C
	return a.Heap.Alloc(size)
}

// A call whose time is over before the large answer to it is read does not leave that to
// wait at the other end.
func TestDeadlineBeforeTheAnswerIsRead(t *testing.T) {
	const size, limit = 4 << 20, time.Second
	memory := &tardy{}
	configure := func(rank int, c *agent.Config) {
		serveBulky(rank, c)
		if rank == 0 {
			c.Allocator = memory
		}
	}
	overSlowLinks(t, 2, configure, func(t *testing.T, group []*agent.Agent, _ *simnet.Network) {
		for range 3 {
			memory.delay = 2 * limit
			_, err := bulky.Call(t.Context(), group[0], "worker1", size, agent.Timeout(limit))
			checkTimeout(t, err, limit, "(1000 ms)")
			synctest.Wait()
			require.Zero(t, group[1].Metrics().ServedCalls)
			memory.delay = 0
			x, err := bulky.Call(t.Context(), group[0], "worker1", size)
			require.NoError(t, err)
			require.Equal(t, size, x.Len())
		}
	})
}

// A link that swallows everything from the first word on does not keep those who want a
// pipe for longer than that may take, though their calls have no limit; the next call
// opens another one.
func TestHalfOpenBeforeThereIsAPipe(t *testing.T) {
	configure := func(rank int, c *agent.Config) {
		serveDouble(rank, c)
		c.HandshakeTimeout = 3 * time.Second
	}
	overSlowLinks(t, 2, configure, func(t *testing.T, group []*agent.Agent, _ *simnet.Network) {
		begun := time.Now()
		_, err := double.Call(t.Context(), group[0], "worker1", 1, agent.Timeout(time.Second))
		checkTimeout(t, err, time.Second, "(1000 ms)")
		require.Equal(t, time.Second, time.Since(begun))
		_, err = double.Call(t.Context(), group[0], "worker1", 1, agent.Timeout(0))
		require.NoError(t, gone(err, "call", "worker1"))
		require.Equal(t, 3*time.Second, time.Since(begun), "the time for opening a pipe")
		n, err := double.Call(t.Context(), group[0], "worker1", 21)
		require.NoError(t, err)
		require.Equal(t, 42, n)
	}, simnet.HalfOpenAt(simnet.AfterFrames(0, simnet.Dialled, 0)))
}
