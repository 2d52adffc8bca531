package agent_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

var double = agent.NewFunc[int, int]("test.double")

func serveDouble(_ int, c *agent.Config) {
	c.Funcs = agent.Funcs{double.Serve(func(_ context.Context, n int) (int, error) { return 2 * n, nil })}
}

// All workers call all workers concurrently, before there is any pipe, and every call succeeds.
func TestSimultaneousFirstCalls(t *testing.T) {
	for range 15 {
		group := startGroup(t, 3, serveDouble)
		errs := make(chan error, 64)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for _, from := range group {
			for _, to := range group {
				for n := range 3 {
					wg.Go(func() {
						<-start
						got, err := double.Call(t.Context(), from, to.Self().To(), n)
						if err == nil && got != 2*n {
							err = agent.ErrResult
						}
						errs <- err
					})
				}
			}
		}
		close(start)
		testwait.Finish(t, testwait.Start(func() bool { wg.Wait(); return true }))
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		for _, a := range group {
			require.NoError(t, a.Close())
		}
	}
}

// overLinks makes the worker of c listen and connect over TCP only through network, whose links a
// test can cut.
func overLinks(c *agent.Config, network *simnet.Network) {
	c.Listen = []string{"uv://127.0.0.1:0"}
	c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
		o.Transports = []pipe.TransportEntry{{Name: "uv", Transport: network}}
		o.Channels = []pipe.ChannelEntry{{Name: "basic", Factory: basic.New()}}
		return pipe.New(o)
	}
}

// When the link between two living workers is cut, the pending call fails with ErrUnreachable, and
// later calls from both ends open another pipe and succeed.
func TestCutLink(t *testing.T) {
	network := simnet.New(uv.New())
	begun := make(chan struct{}, 8)
	group := startGroup(t, 2, func(_ int, c *agent.Config) {
		overLinks(c, network)
		c.Funcs = agent.Funcs{
			double.Serve(func(_ context.Context, n int) (int, error) { return 2 * n, nil }),
			stuck.Serve(func(ctx context.Context, _ string) (string, error) {
				begun <- struct{}{}
				<-ctx.Done()
				return "", context.Cause(ctx)
			}),
		}
	})
	for round := range 10 {
		call := stuck.Go(t.Context(), group[round%2], agent.Rank(1-round%2), "", agent.WithTimeout(0))
		testwait.Finish(t, begun)
		for _, l := range network.Links() {
			l.Cut()
		}
		_, err := call.Wait(t.Context())
		require.NoError(t, wantDeath(err, "call", group[1-round%2].Self().Name))
		requireAll(t, group, func(a *agent.Agent) error {
			// The other end may not have noticed yet: this call may fail too, but no further one.
			for {
				n, err := double.Call(t.Context(), a, agent.Rank(1-a.Self().Rank), round)
				if err == nil {
					return want(2*round, n)
				}
				if err := wantDeath(err, "call", group[1-a.Self().Rank].Self().Name); err != nil {
					return err
				}
			}
		})
	}
}

// On a link that drops everything a call ends at its limit. Once the link works again, calls
// succeed.
func TestHalfOpenLink(t *testing.T) {
	network := simnet.New(uv.New())
	group := startGroup(t, 2, func(rank int, c *agent.Config) { serveDouble(rank, c); overLinks(c, network) })
	_, err := double.Call(t.Context(), group[0], "worker1", 1)
	require.NoError(t, err)
	links := network.Links()
	for _, l := range links {
		l.HalfOpen()
	}
	_, err = double.Call(t.Context(), group[0], "worker1", 1, agent.WithTimeout(100*time.Millisecond))
	require.ErrorIs(t, err, agent.ErrTimeout)
	for _, l := range links {
		l.Heal()
	}
	n, err := double.Call(t.Context(), group[0], "worker1", 2)
	require.NoError(t, err)
	require.Equal(t, 4, n)
}
