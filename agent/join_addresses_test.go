package agent

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/loglines"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

func TestRouteTo(t *testing.T) {
	for addr, want := range map[string]string{
		"127.0.0.1:29500": "127.0.0.1", "localhost:29500": "127.0.0.1",
		"": "", ":29500": "", "0.0.0.0:29500": "", "[::]:29500": "", "no port": "", "no.such.host.invalid:1": "",
	} {
		if got := routeTo(t.Context(), addr); got != want && (want == "" || got != "::1") { // localhost may be either
			t.Errorf("%q: got %q, want %q", addr, got, want)
		}
	}
}

func TestPublishedHosts(t *testing.T) {
	require.Empty(t, publishedHosts(""))
	hosts := publishedHosts("127.0.0.1")
	require.Equal(t, "127.0.0.1", hosts[0])
	require.LessOrEqual(t, len(hosts), maxHosts)
	for _, h := range hosts[1:] {
		require.True(t, net.ParseIP(h).IsGlobalUnicast(), h)
	}
	if len(hosts) > 1 {
		require.NotContains(t, publishedHosts(hosts[1])[1:], hosts[1], "published once")
	}
}

// A worker that listens at a wildcard publishes first the address from which it reaches the store,
// and no wildcard.
func TestWildcardIsReplaced(t *testing.T) {
	for _, listen := range []string{"uv://0.0.0.0:0", "uv://:0", "uv://[::]:0"} {
		a, err := Join(t.Context(), Config{
			Name: "worker0", Token: []byte("secret"), Rendezvous: "tcp://127.0.0.1:" + freeport.Port(t, "127.0.0.1"), Listen: []string{listen},
		})
		require.NoError(t, err)
		port := a.listener.URLs()[0]
		port = port[len(port)-5:]
		require.Regexp(t, `^uv://127\.0\.0\.1:\d*`+port+`$`, a.selfPeer.member.URLs[0])
		for _, u := range a.selfPeer.member.URLs {
			require.NotContains(t, u, "//0.0.0.0")
			require.NotContains(t, u, "[::]")
		}
		require.NoError(t, a.Close())
	}
}

// Join fails with ErrConfig, and asks the user to set Listen, if a worker would listen at a
// wildcard, or at the default, and the address from which it reaches the store is unknown.
func TestNoRouteForAWildcard(t *testing.T) {
	memory := store.NewMemory(store.Limits{})
	defer func() { require.NoError(t, memory.Close()) }()
	port := freeport.Port(t, "127.0.0.1")
	for name, c := range map[string]Config{
		"store in memory":                   {Store: memory, Listen: []string{"uv://0.0.0.0:0"}},
		"store in a file":                   {Rendezvous: "file://" + t.TempDir() + "/store", Listen: []string{"uv://[::]:0"}},
		"serves at a wildcard":              {Rendezvous: "tcp://0.0.0.0:" + port, Listen: []string{"uv://0.0.0.0:0"}},
		"serves at a wildcard, no Listen":   {Rendezvous: "tcp://0.0.0.0:" + port},
		"environment with a wildcard store": {Rendezvous: "env://"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.Rendezvous == "env://" {
				setEnvironment(t, &c, "0.0.0.0", port)
			}
			c.Name, c.Token = "worker0", []byte("secret")
			_, err := Join(t.Context(), c)
			require.ErrorIs(t, err, ErrConfig)
			require.ErrorContains(t, err, "set Listen to an address of this machine that the other workers reach")
		})
	}
}

// silentTransport has addresses at which nothing answers: a dial ends with its context.
type silentTransport struct {
	transport.Transport
	silent map[string]bool
}

func (s silentTransport) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	if s.silent[addr] {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Transport.Dial(ctx, addr)
}

func (s silentTransport) IsLocal(addr string) bool { return !s.silent[addr] }

// A worker that publishes several addresses is reached although nothing answers at the first ones:
// each of these delays the dial by dialStagger only.
func TestDialSeveralAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := mem.NewNetwork()
		group := joinInternal(t, 2, func(rank int, c *Config) {
			c.Listen = []string{"mem://"}
			c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
				silent := silentTransport{mem.New(network), map[string]bool{"dead": true, "lost": true}}
				o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: silent}}
				o.Channels = []pipe.ChannelEntry{{Name: "xth", Factory: xth.New()}}
				return pipe.New(o)
			}
		})
		to := group[0].peers.find("worker1")
		own, wrong := to.member.URLs[0], group[0].selfPeer.member.URLs[0]

		to.member.URLs = []string{"mem://dead", "mem://lost", wrong, own}
		begun := time.Now()
		_, err := to.connect(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2*dialStagger, time.Since(begun), "the wrong worker rejects at once")
	})
}

// Join fails with ErrTimeout after JoinTimeout, and names and logs the ranks that are missing. With
// NoTimeout only its context bounds it, and another negative JoinTimeout is invalid.
func TestJoinTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.NewMemory(store.Limits{})
		defer func() { require.NoError(t, s.Close()) }()
		var log loglines.Lines
		network := mem.NewNetwork()
		c := Config{Name: "worker1", Rank: 1, WorldSize: 3, Store: s, Logger: log.Logger(), Listen: []string{"mem://"}}
		c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
			o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}}
			return pipe.New(o)
		}
		begun := time.Now()
		_, err := Join(t.Context(), c)
		require.Equal(t, defaultJoinTimeout, time.Since(begun))
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "JoinTimeout")
		require.ErrorContains(t, err, "ranks 0, 2 of 3 have not joined")
		require.Equal(t, 1, strings.Count(log.String(), "waiting for other workers"))

		c.JoinTimeout = NoTimeout
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err = Join(ctx, c)
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		c.JoinTimeout = -2
		_, err = Join(ctx, c)
		require.ErrorIs(t, err, ErrConfig)
	})
}
