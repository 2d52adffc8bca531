package agent_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/simnet"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// overSlowLinks runs f with n workers in a bubble of testing/synctest, over a network in memory
// whose links follow the given rules: they are slow, lossy or broken, for example. configure must
// not be nil; the network and the listening address replace those that it sets.
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

// A call whose limit ends while its large reply is being read ends at that time. The pipe stays
// usable, and after that neither end has a pending call or a request that is served.
func TestTimeoutWhileReplyIsRead(t *testing.T) {
	const perSecond, limit = 1 << 20, 5 * time.Second
	overSlowLinks(t, 2, serveBulky, func(t *testing.T, group []*agent.Agent, network *simnet.Network) {
		_, err := bulky.Call(t.Context(), group[0], "worker1", perSecond) // opens the connections for large replies
		require.NoError(t, err)
		links := len(network.Links())
		for name, call := range map[string]func(n int) error{
			"call": func(n int) error {
				_, err := bulky.Call(t.Context(), group[0], "worker1", n, agent.WithTimeout(limit))
				return err
			},
			"future": func(n int) error {
				_, err := bulky.Go(t.Context(), group[0], "worker1", n, agent.WithTimeout(limit)).Wait(t.Context())
				return err
			},
		} {
			for range 3 {
				begun, ended := time.Now(), make(chan error, 1)
				go func() { ended <- call(20 * perSecond) }()
				<-time.NewTimer(limit - time.Second).C
				calls := group[0].Snapshot().Pending
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

// slowAllocator waits for delay before it allocates.
type slowAllocator struct {
	tensor.Heap
	delay time.Duration
}

func (a *slowAllocator) Alloc(size int) (*tensor.Storage, error) {
	<-time.NewTimer(a.delay).C
	return a.Heap.Alloc(size)
}

// If the limit of a call ends before its large reply is read, the reply does not stay pending at
// the worker that sends it.
func TestTimeoutBeforeReplyIsRead(t *testing.T) {
	const size, limit = 5 << 20, time.Second // larger than eager parts
	memory := &slowAllocator{}
	configure := func(rank int, c *agent.Config) {
		serveBulky(rank, c)
		if rank == 0 {
			c.Allocator = memory
		}
	}
	overSlowLinks(t, 2, configure, func(t *testing.T, group []*agent.Agent, _ *simnet.Network) {
		for range 3 {
			memory.delay = 2 * limit
			_, err := bulky.Call(t.Context(), group[0], "worker1", size, agent.WithTimeout(limit))
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

// Over a link that loses all frames from the first one on, a call fails at its limit, and a call
// without a limit after the handshake timeout. The next call opens another pipe and succeeds.
func TestHalfOpenConnectionDuringHandshake(t *testing.T) {
	configure := func(rank int, c *agent.Config) {
		serveDouble(rank, c)
		c.HandshakeTimeout = 3 * time.Second
	}
	overSlowLinks(t, 2, configure, func(t *testing.T, group []*agent.Agent, _ *simnet.Network) {
		begun := time.Now()
		_, err := double.Call(t.Context(), group[0], "worker1", 1, agent.WithTimeout(time.Second))
		checkTimeout(t, err, time.Second, "(1000 ms)")
		require.Equal(t, time.Second, time.Since(begun))
		_, err = double.Call(t.Context(), group[0], "worker1", 1, agent.WithTimeout(0))
		require.NoError(t, wantDeath(err, "call", "worker1"))
		require.Equal(t, 3*time.Second, time.Since(begun), "the time for opening a pipe")
		n, err := double.Call(t.Context(), group[0], "worker1", 21)
		require.NoError(t, err)
		require.Equal(t, 42, n)
	}, simnet.HalfOpenAt(simnet.AfterFrames(0, simnet.Dialled, 0)))
}

var manyOnes = agent.NewFunc[int, *tensor.Tensor]("test.manyOnes")

// cuttingAllocator cuts the links of a network the next times that it allocates.
type cuttingAllocator struct {
	tensor.Allocator
	network *simnet.Network
	times   atomic.Int32
}

func (c *cuttingAllocator) Alloc(size int) (*tensor.Storage, error) {
	if c.times.Add(-1) >= 0 {
		for _, l := range c.network.Links() {
			l.Cut()
		}
	}
	return c.Allocator.Alloc(size)
}

// If the pipe breaks while a reply is read, the call fails with ErrUnreachable, not with ErrResult.
// A call WithRetry is made again and succeeds.
func TestPipeBreaksWhileReplyIsRead(t *testing.T) {
	cut := &cuttingAllocator{Allocator: tensor.NewPool(tensor.PoolOptions{}), network: simnet.New(uv.New())}
	group := startGroup(t, 2, func(rank int, c *agent.Config) {
		overLinks(c, cut.network)
		if rank == 0 {
			c.Allocator = cut
		}
		c.Funcs = agent.Funcs{manyOnes.Serve(func(_ context.Context, n int) (*tensor.Tensor, error) {
			x, err := tensor.Zeros(tensor.F32, n)
			if err != nil {
				return nil, err
			}
			return x, tensor.Fill[float32](x, 1)
		})}
	})
	const n = 2 << 20 // 8 MiB, more than is sent before the receiver has allocated memory for it
	for range 2 {
		cut.times.Store(1)
		_, err := manyOnes.Call(t.Context(), group[0], "worker1", n)
		require.NoError(t, wantDeath(err, "call", "worker1"))
		require.NotErrorIs(t, err, agent.ErrResult)

		cut.times.Store(1)
		_, err = manyOnes.Go(t.Context(), group[0], "worker1", n).Wait(t.Context())
		require.NoError(t, wantDeath(err, "call", "worker1"))
		require.NotErrorIs(t, err, agent.ErrResult)

		cut.times.Store(2)
		// Many attempts: a busy machine may be slow to open another pipe.
		again := agent.WithRetry(agent.Retry{Max: 1000, Delay: 5 * time.Millisecond, Backoff: 1})
		x, err := manyOnes.Call(t.Context(), group[0], "worker1", n, again)
		require.NoError(t, err)
		same, err := tensor.Equal(filled(t, 1, n), x)
		require.NoError(t, err)
		require.True(t, same)
		require.Negative(t, cut.times.Load())
	}
}

// If pipes can be opened in one direction only, because a firewall drops the packets of the other
// one, both ends make their calls on a pipe opened in that direction, even while the blocked end
// tries to open its own.
func TestPipesInOneDirectionOnly(t *testing.T) {
	for name, blockedRank := range map[string]int{"lower name": 0, "higher name": 1} {
		t.Run(name, func(t *testing.T) {
			overSlowLinks(t, 2, serveDouble, func(t *testing.T, group []*agent.Agent, _ *simnet.Network) {
				begun := time.Now()
				blockedCall := make(chan error, 1)
				go func() {
					n, err := double.Call(t.Context(), group[blockedRank], agent.Rank(1-blockedRank), 1, agent.WithTimeout(0))
					blockedCall <- errors.Join(err, want(2, n))
				}()
				synctest.Wait()
				require.Len(t, group[blockedRank].Snapshot().Pending, 1)
				require.Equal(t, agent.CallConnecting, group[blockedRank].Snapshot().Pending[0].State)
				n, err := double.Call(t.Context(), group[1-blockedRank], agent.Rank(blockedRank), 21, agent.WithTimeout(0))
				require.NoError(t, err)
				require.Equal(t, 42, n)
				require.NoError(t, <-blockedCall)
				require.Zero(t, time.Since(begun), "no call has waited for the pipe that cannot be opened")
			}, simnet.HalfOpenAt(simnet.AfterFrames(0, simnet.Dialled, 0)))
		})
	}
}
