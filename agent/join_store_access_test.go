package agent

import (
	"context"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/loglines"
)

// A worker that serves its store to the network without Token, Secure or Insecure fails to join
// with ErrConfig, and does not serve the store, even if the worker listens on loopback only: a
// process that reaches the store can add a worker to the group.
func TestStoreAccess(t *testing.T) {
	for name, c := range map[string]struct {
		host   string
		edit   func(t *testing.T, c *Config, port string)
		fine   bool
		warned bool
	}{
		"open":                        {"0.0.0.0", nil, false, false},
		"port alone":                  {"127.0.0.1", func(_ *testing.T, c *Config, port string) { c.StoreOptions.Listen = ":" + port }, false, false},
		"dynamic":                     {"0.0.0.0", func(_ *testing.T, c *Config, _ string) { c.WorldSize = 0 }, false, false},
		"environment":                 {"", func(t *testing.T, c *Config, port string) { setEnvironment(t, c, "0.0.0.0", port) }, false, false},
		"token":                       {"0.0.0.0", func(_ *testing.T, c *Config, _ string) { c.Token = []byte("secret") }, true, false},
		"secure":                      {"0.0.0.0", func(_ *testing.T, c *Config, _ string) { c.Secure = true }, true, false},
		"insecure":                    {"0.0.0.0", func(_ *testing.T, c *Config, _ string) { c.Insecure = true }, true, true},
		"loopback":                    {"127.0.0.1", nil, true, false},
		"localhost":                   {"localhost", nil, true, false},
		"inside":                      {"0.0.0.0", func(_ *testing.T, c *Config, port string) { c.StoreOptions.Listen = "127.0.0.1:" + port }, true, false},
		"environment of this machine": {"", func(t *testing.T, c *Config, port string) { setEnvironment(t, c, "127.0.0.1", port) }, true, false},
		"of another": {"0.0.0.0", func(t *testing.T, c *Config, port string) {
			s, err := store.Serve(t.Context(), "127.0.0.1:"+port, store.ServerOptions{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			c.StoreOptions.Join = true
		}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			var log loglines.Lines
			port := freeport.Port(t, "127.0.0.1")
			cfg := Config{Name: "worker0", WorldSize: 1, Rendezvous: "tcp://" + net.JoinHostPort(c.host, port), Logger: log.Logger(), Listen: []string{"uv://127.0.0.1:0"}}
			if c.edit != nil {
				c.edit(t, &cfg, port)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			a, err := Join(ctx, cfg)
			if !c.fine {
				require.ErrorIs(t, err, ErrConfig)
				require.ErrorContains(t, err, "serving the store at tcp://")
				_, err := net.Dial("tcp", "127.0.0.1:"+port)
				require.Error(t, err, "the store was not served before the check")
				return
			}
			require.NoError(t, err)
			require.Equal(t, WorkerInfo{Name: "worker0"}, a.Self())
			require.NoError(t, a.Close())
			require.Equal(t, c.warned, strings.Contains(log.String(), "any process that reaches the store at this address"))
		})
	}
}

// setEnvironment sets the environment variables of torchrun, for a group of one worker whose store
// is at host and port, until the end of the test. It makes c use them, with Rank and WorldSize
// values that must be ignored.
func setEnvironment(t *testing.T, c *Config, host, port string) {
	t.Helper()
	t.Setenv("RANK", "0")
	t.Setenv("WORLD_SIZE", "1")
	t.Setenv("MASTER_ADDR", host)
	t.Setenv("MASTER_PORT", port)
	c.Rendezvous, c.Rank, c.WorldSize = "env://", 5, 7
}

func TestIsLoopback(t *testing.T) {
	for address, local := range map[string]bool{
		"127.0.0.1:1": true, "localhost:29500": true, "[::1]:29500": true,
		":29500": false, "node17:29500": false, "0.0.0.0:29500": false, "": false, "%zz": false,
	} {
		require.Equal(t, local, isLoopback(address), address)
	}
}

// A worker with a Rank of -1 joins the store. It does not serve it, as the worker of rank 0 does.
func TestUnrankedWorkerJoinsTheStore(t *testing.T) {
	c := Config{Name: "first", Rendezvous: "tcp://127.0.0.1:" + freeport.Port(t, "127.0.0.1")}
	first, err := Join(t.Context(), c)
	require.NoError(t, err)
	defer func() { require.NoError(t, first.Close()) }()
	c.Name, c.Rank = "second", -1
	second, err := Join(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, WorkerInfo{Name: "second", Rank: 1}, second.Self())
	require.NoError(t, second.Close())

	c.Name, c.Rank = "third", 0
	_, err = Join(t.Context(), c)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, "set StoreOptions.Join, or a Rank of -1")
}
