package agent_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testcert"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

func TestToken(t *testing.T) {
	for name, c := range map[string]struct {
		tokens [2]string
		fits   bool
	}{
		"same":      {[2]string{"secret", "secret"}, true},
		"different": {[2]string{"secret", "guess"}, false},
		"none here": {[2]string{"", "secret"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			group := startGroup(t, 2, func(rank int, cfg *agent.Config) {
				cfg.Token = []byte(c.tokens[rank])
				serveDouble(rank, cfg)
			})
			for i, a := range group {
				_, err := double.Call(t.Context(), a, group[1-i].Self().To(), 1)
				if c.fits {
					require.NoError(t, err)
					continue
				}
				require.ErrorIs(t, err, agent.ErrRefused)
				require.ErrorContains(t, err, "does not know the token of the group")
				_, err = double.Call(t.Context(), a, a.Self().To(), 1)
				require.NoError(t, err)
			}
		})
	}
}

// Join fails with ErrConfig if the worker listens on all interfaces without Token, Secure or
// Insecure. With Insecure it logs a warning.
func TestListenAccess(t *testing.T) {
	for name, c := range map[string]struct {
		edit   func(*agent.Config)
		fine   bool
		warned bool
	}{
		"open":     {func(*agent.Config) {}, false, false},
		"token":    {func(c *agent.Config) { c.Token = []byte("secret") }, true, false},
		"secure":   {func(c *agent.Config) { c.Secure = true }, true, false},
		"insecure": {func(c *agent.Config) { c.Insecure = true }, true, true},
		"loopback": {func(c *agent.Config) { c.Listen = []string{"uv://localhost:0", "shm://"} }, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			cfg := member(nil, 0, 1)
			cfg.Rendezvous = "tcp://127.0.0.1:" + freeport.Port(t, "127.0.0.1")
			cfg.Listen, cfg.Logger = []string{"uv://0.0.0.0:0"}, slog.New(slog.NewTextHandler(&log, nil))
			c.edit(&cfg)
			a, errs := joinAll(t, cfg)
			if !c.fine {
				require.ErrorIs(t, errs[0], agent.ErrConfig)
				return
			}
			require.NoError(t, errs[0])
			require.NoError(t, a[0].Close())
			require.Equal(t, c.warned, bytes.Contains(log.Bytes(), []byte("any process that reaches this address can call")))
		})
	}
}

// overTLS makes the worker of c listen and connect only by TCP with TLS, configured by config.
func overTLS(c *agent.Config, config *tls.Config) {
	c.Listen, c.Secure = []string{"uv://127.0.0.1:0"}, true
	c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
		o.Transports = []pipe.TransportEntry{{Name: "uv", Transport: uv.New(uv.WithTLS(config, config))}}
		o.Channels = []pipe.ChannelEntry{{Name: "basic", Factory: basic.New()}}
		return pipe.New(o)
	}
}

func TestTLS(t *testing.T) {
	ours := testcert.New(t)
	group := startGroup(t, 3, func(rank int, c *agent.Config) {
		serveAdd()(rank, c)
		overTLS(c, ours)
		if rank == 2 {
			overTLS(c, testcert.New(t)) // which no other worker trusts
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	x := filled(t, 1, 1000, 100)
	_, err := add.Call(ctx, group[0], "worker1", pair{x, x})
	require.NoError(t, err)
	_, err = add.Call(ctx, group[0], "worker2", pair{x, x})
	require.ErrorIs(t, err, agent.ErrUnreachable)
	require.ErrorContains(t, err, "certificate")
	_, err = add.Call(ctx, group[2], "worker1", pair{x, x})
	require.ErrorIs(t, err, agent.ErrUnreachable)
}

// Workers with TLS in their Configs call each other, and do not admit one with another certificate.
func TestConfigTLS(t *testing.T) {
	ours, theirs := testcert.New(t), testcert.New(t)
	group := startGroup(t, 3, func(rank int, c *agent.Config) {
		serveAdd()(rank, c)
		c.TLS, c.Listen = ours, []string{"uv://127.0.0.1:0"}
		if rank == 2 {
			c.TLS = theirs
		}
	})
	x := filled(t, 1, 1000, 100)
	_, err := add.Call(t.Context(), group[0], "worker1", pair{x, x})
	require.NoError(t, err)
	_, err = add.Call(t.Context(), group[0], "worker2", pair{x, x})
	require.ErrorIs(t, err, agent.ErrUnreachable)
	require.ErrorContains(t, err, "certificate")
}

// Join fails with ErrConfig for a TLS configuration that would admit workers without a certificate
// or a token, that has no certificate, or that a NewContext would ignore.
func TestConfigTLSIsChecked(t *testing.T) {
	for want, edit := range map[string]func(c *agent.Config){
		"set its ClientAuth to tls.RequireAndVerifyClientCert, or set Token": func(c *agent.Config) { c.TLS.ClientAuth = tls.NoClientCert },
		"TLS has no certificate":  func(c *agent.Config) { c.TLS.Certificates = nil },
		"both TLS and NewContext": func(c *agent.Config) { c.NewContext = tensorpipe.NewContext },
	} {
		c := member(memoryStore(t), 0, 1)
		c.TLS = testcert.New(t)
		edit(&c)
		_, errs := joinAll(t, c)
		require.ErrorIs(t, errs[0], agent.ErrConfig)
		require.ErrorContains(t, errs[0], want)
	}
	c := member(memoryStore(t), 0, 1)
	c.TLS, c.Token = testcert.New(t), []byte("secret")
	c.TLS.ClientAuth = tls.NoClientCert
	_, errs := joinAll(t, c)
	require.NoError(t, errs[0])
}
