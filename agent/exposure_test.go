package agent

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/loglines"
)

// Who reaches a store can enter a worker of his own into it: nobody serves one to the whole
// network by accident, though the worker itself listens to this machine alone.
func TestExposureOfTheStore(t *testing.T) {
	for name, c := range map[string]struct {
		host   string
		edit   func(t *testing.T, c *Config, port string)
		fine   bool
		warned bool
	}{
		"open":                        {"0.0.0.0", nil, false, false},
		"port alone":                  {"127.0.0.1", func(_ *testing.T, c *Config, port string) { c.StoreOptions.Listen = ":" + port }, false, false},
		"dynamic":                     {"0.0.0.0", func(_ *testing.T, c *Config, _ string) { c.Rank, c.WorldSize = -1, 0 }, false, false},
		"environment":                 {"", func(t *testing.T, c *Config, port string) { inEnvironment(t, c, "0.0.0.0", port) }, false, false},
		"token":                       {"0.0.0.0", func(_ *testing.T, c *Config, _ string) { c.Token = []byte("secret") }, true, false},
		"secure":                      {"0.0.0.0", func(_ *testing.T, c *Config, _ string) { c.Secure = true }, true, false},
		"insecure":                    {"0.0.0.0", func(_ *testing.T, c *Config, _ string) { c.Insecure = true }, true, true},
		"loopback":                    {"127.0.0.1", nil, true, false},
		"localhost":                   {"localhost", nil, true, false},
		"inside":                      {"0.0.0.0", func(_ *testing.T, c *Config, port string) { c.StoreOptions.Listen = "127.0.0.1:" + port }, true, false},
		"environment of this machine": {"", func(t *testing.T, c *Config, port string) { inEnvironment(t, c, "127.0.0.1", port) }, true, false},
		"of another": {"0.0.0.0", func(t *testing.T, c *Config, port string) {
			s, err := store.Serve(t.Context(), "127.0.0.1:"+port, store.ServerOptions{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close()) })
			c.StoreOptions.Join = true
		}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			var log loglines.Lines
			port := freeport.On(t, "127.0.0.1")
			cfg := Config{Name: "worker0", WorldSize: 1, Rendezvous: "tcp://" + net.JoinHostPort(c.host, port), Logger: log.Logger()}
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
				require.Error(t, err, "nothing was served before that was found out")
				return
			}
			require.NoError(t, err)
			require.Equal(t, WorkerInfo{Name: "worker0"}, a.Self())
			require.NoError(t, a.Close())
			require.Equal(t, c.warned, strings.Contains(log.String(), "whoever reaches the store at this address"))
		})
	}
}

// inEnvironment has the only worker of a group find its store as torchrun says.
func inEnvironment(t *testing.T, c *Config, host, port string) {
	t.Helper()
	t.Setenv("RANK", "0")
	t.Setenv("WORLD_SIZE", "1")
	t.Setenv("MASTER_ADDR", host)
	t.Setenv("MASTER_PORT", port)
	c.Rendezvous, c.Rank, c.WorldSize = "env://", 5, 7
}

// Of a transport that is not known it is not known who reaches it.
func TestIsLocal(t *testing.T) {
	for address, local := range map[string]bool{
		"shm://": true, "shm:///tmp/x": true, "mem://here": true,
		"uv://127.0.0.1:0": true, "uv://127.9.9.9:1": true, "uv://[::1]:0": true, "uv://localhost:7000": true, "tcp://127.0.0.1:1": true,
		"uv://0.0.0.0:0": false, "uv://[::]:0": false, "uv://:7000": false, "uv://192.0.2.1:0": false, "uv://node17:0": false,
		"tcp://:29500": false, "tcp://node17:29500": false,
		"quic://127.0.0.1:0": false, "ib://": false, "": false, "127.0.0.1:0": false, "uv://%zz": false,
	} {
		require.Equal(t, local, isLocal(address), address)
	}
}
