package agent_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// silentPeers open pipes on a network in memory and send nothing.
type silentPeers struct {
	context *pipe.Context
	lines   []*pipe.Pipe
}

func newSilentPeers(t *testing.T, network *mem.Network) *silentPeers {
	c, err := pipe.New(pipe.Options{
		Dialect:    pipe.DialectNative,
		Transports: []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}},
		Channels:   []pipe.ChannelEntry{{Name: "xth", Factory: xth.New()}},
	})
	require.NoError(t, err)
	s := &silentPeers{context: c}
	t.Cleanup(func() {
		for _, line := range s.lines {
			line.Abort(nil)
		}
		require.NoError(t, c.Close())
	})
	return s
}

// come opens n more pipes to url that send nothing, and waits until all goroutines of the bubble
// are blocked.
func (s *silentPeers) come(t *testing.T, n int, url string) {
	for range n {
		line, err := s.context.Dial(t.Context(), url)
		require.NoError(t, err)
		s.lines = append(s.lines, line)
	}
	synctest.Wait()
}

// rejected returns how many of the pipes that come opened have ended.
func (s *silentPeers) rejected() (n int) {
	for _, line := range s.lines {
		if line.Err() != nil {
			n++
		}
	}
	return n
}

// limitHandshakes makes the worker of c listen at mem://<name> of network with a token, admit 4
// pending handshakes, and wait an hour for each. The worker serves double.
func limitHandshakes(c *agent.Config, network *mem.Network) {
	serveDouble(0, c)
	inMemory(c, network)
	c.Listen = []string{"mem://" + c.Name}
	c.Token, c.Limits.MaxHandshakes, c.HandshakeTimeout = []byte("secret"), 4, time.Hour
}

// Beyond Limits.MaxHandshakes the oldest silent pipes are evicted, for newer silent pipes and for
// those of members. Members are not evicted.
func TestSilentPeersAreEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.NewNetwork()
		group := startGroup(t, 2, func(_ int, c *agent.Config) { limitHandshakes(c, network) })
		s := newSilentPeers(t, network)
		s.come(t, 10, "mem://worker1")
		require.Equal(t, 6, s.rejected())
		require.EqualValues(t, 6, group[1].Metrics().RejectedPipes)

		begun := time.Now()
		got, err := double.Call(t.Context(), group[0], "worker1", 2)
		require.NoError(t, err)
		require.Equal(t, 4, got)
		require.Zero(t, time.Since(begun))
		synctest.Wait()
		require.Equal(t, 7, s.rejected())

		s.come(t, 10, "mem://worker1")
		require.Equal(t, 16, s.rejected(), "one handshake had ended before")
		got, err = double.Call(t.Context(), group[0], "worker1", 3)
		require.NoError(t, err, "a member is not evicted")
		require.Equal(t, 6, got)
	})
}

// Silent pipes beyond Limits.MaxHandshakes are evicted also while the worker still waits for the
// other members to join.
func TestSilentPeersBeforeJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, members := mem.NewNetwork(), memoryStore(t)
		first, second := member(members, 0, 2), member(members, 1, 2)
		limitHandshakes(&first, network)
		limitHandshakes(&second, network)
		var group [2]*agent.Agent
		join := func(c agent.Config) <-chan error {
			return testwait.Start(func() (err error) {
				group[c.Rank], err = agent.Join(t.Context(), c)
				return err
			})
		}
		early := join(first)
		synctest.Wait()
		s := newSilentPeers(t, network)
		s.come(t, 10, "mem://worker0")
		require.Equal(t, 6, s.rejected())
		require.NoError(t, <-join(second))
		require.NoError(t, <-early)
		got, err := double.Call(t.Context(), group[1], "worker0", 2)
		require.NoError(t, err)
		require.Equal(t, 4, got)
		for _, a := range group {
			require.NoError(t, a.Close())
		}
	})
}
