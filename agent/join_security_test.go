package agent_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
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

// Listening on all interfaces without a token needs Insecure.
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
			cfg := member(memoryStore(t), 0, 1)
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

// certificateOf returns the TLS configuration of a certificate for this machine, which it trusts.
func certificateOf(t *testing.T) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		RootCAs:      pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

// overTLS makes a worker use TLS only.
func overTLS(c *agent.Config, config *tls.Config) {
	c.Listen, c.Secure = []string{"uv://127.0.0.1:0"}, true
	c.NewContext = func(o pipe.Options) (*pipe.Context, error) {
		o.Transports = []pipe.TransportEntry{{Name: "uv", Transport: uv.New(uv.WithTLS(config, config))}}
		o.Channels = []pipe.ChannelEntry{{Name: "basic", Factory: basic.New()}}
		return pipe.New(o)
	}
}

func TestTLS(t *testing.T) {
	ours := certificateOf(t)
	group := startGroup(t, 3, func(rank int, c *agent.Config) {
		serveAdd()(rank, c)
		overTLS(c, ours)
		if rank == 2 {
			overTLS(c, certificateOf(t)) // which no other worker trusts
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
