package pipe_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// mutualTLS returns a new TLS configuration that can be used for both roles. An end with it
// authenticates as name with a new certificate, trusts only that certificate, and requires it of
// the peer.
func mutualTLS(t testing.TB, name string) *tls.Config {
	t.Helper()
	config, err := newIdentity(name)
	require.NoError(t, err)
	return config
}

func newIdentity(name string) (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		DNSNames:              []string{name},
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		RootCAs:      pool,
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}, nil
}

// overTLS returns a TCP transport whose two ends authenticate as "both ends".
var overTLS = sync.OnceValue(func() *uv.Transport {
	config, err := newIdentity("both ends")
	if err != nil {
		panic(err)
	}
	config.ServerName = "both ends"
	return uv.New(uv.WithTLS(config, config))
})

// watched records the connections that a transport dials.
type watched struct {
	*uv.Transport
	mu      sync.Mutex
	dialled []transport.Conn
}

func (w *watched) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := w.Transport.Dial(ctx, addr)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.dialled = append(w.dialled, c)
	}
	return c, err
}

// overUV returns a context with the transport tr, named uv, and the channel basic. adjust changes
// the options, and the context is closed at the end of the test.
func overUV(t testing.TB, tr transport.Transport, adjust ...func(*pipe.Options)) *pipe.Context {
	return newContext(t, path{opts: func() pipe.Options {
		return pipe.Options{
			Transports: []pipe.TransportEntry{{Name: "uv", Transport: tr}},
			Channels:   []pipe.ChannelEntry{{Name: "basic", Factory: basic.New()}},
		}
	}}, adjust...)
}

// TestPipeOverTLS checks that in both dialects all connections of a pipe use TLS, and each end
// verifies the name of the other, also for connections that are dialled to a numeric address.
func TestPipeOverTLS(t *testing.T) {
	t.Run(string(pipe.DialectCompatible), func(t *testing.T) { pipeOverTLS(t, pipe.DialectCompatible, 4) })
	t.Run(string(pipe.DialectNative), func(t *testing.T) { pipeOverTLS(t, pipe.DialectNative, 2) })
}

func pipeOverTLS(t *testing.T, dialect pipe.Dialect, connections int) {
	config := mutualTLS(t, "localhost")
	tr := &watched{Transport: uv.New(uv.WithTLS(config, config))}
	speak := func(o *pipe.Options) { o.Dialect = dialect }
	l, err := overUV(t, tr, speak).Listen(testContext(t), "uv://127.0.0.1:0")
	require.NoError(t, err)
	client, err := overUV(t, tr, speak).Dial(testContext(t), "uv://localhost:"+port(t, l))
	require.NoError(t, err)
	server, err := l.Accept(testContext(t))
	require.NoError(t, err)
	for i := range 5 {
		exchange(t, client, server, message(i, []int{0, 10, 100_000}, []int{0, 7, 1 << 20}))
	}
	require.Len(t, tr.dialled, connections)
	for _, c := range tr.dialled {
		id, err := c.(transport.Identified).PeerIdentity()
		require.NoError(t, err)
		require.Equal(t, "localhost", id.TLS.VerifiedChains[0][0].Subject.CommonName)
	}
	closeBoth(t, client, server)
}

func port(t testing.TB, l *pipe.Listener) string {
	t.Helper()
	url := l.URLs()[0]
	return url[bytes.LastIndexByte([]byte(url), ':')+1:]
}

// closeBoth calls Close of both ends concurrently and requires that both return nil.
func closeBoth(t testing.TB, client, server *pipe.Pipe) {
	t.Helper()
	closed := make(chan error, 1)
	go func() { closed <- client.Close() }()
	require.NoError(t, server.Close())
	require.NoError(t, <-closed)
}

// TestPlainAndTLSPipes checks that opening a pipe between an end with TLS and one without fails
// with ErrTLSMismatch; the client's error and the server's log have the reason. Pipes of the same
// listener that are open stay up.
func TestPlainAndTLSPipes(t *testing.T) {
	config := mutualTLS(t, "localhost")
	for name, tc := range map[string]struct {
		listener, right, wrong transport.Transport
		clientSays, serverSays string
	}{
		"plain client": {
			uv.New(uv.WithTLS(nil, config)), uv.New(uv.WithTLS(config, nil)), uv.New(),
			"look like TLS", "one end speaks TLS and the other does not",
		},
		"plain server": {
			uv.New(), uv.New(), uv.New(uv.WithTLS(config, nil)),
			"a plain listener", "look like TLS",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log syncBuffer
			server := overUV(t, tc.listener, func(o *pipe.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
			l, err := server.Listen(testContext(t), "uv://127.0.0.1:0")
			require.NoError(t, err)
			url := "uv://localhost:" + port(t, l)
			good, err := overUV(t, tc.right).Dial(testContext(t), url)
			require.NoError(t, err)
			accepted, err := l.Accept(testContext(t))
			require.NoError(t, err)

			_, err = overUV(t, tc.wrong).Dial(testContext(t), url)
			require.ErrorIs(t, err, uv.ErrTLSMismatch)
			require.NotErrorIs(t, err, pipe.ErrHandshakeTimeout)
			require.ErrorContains(t, err, tc.clientSays)
			require.Eventually(t, func() bool { return server.Stats().HandshakesFailed == 1 }, time.Minute, time.Millisecond)
			require.Eventually(t, func() bool { return log.contains(tc.serverSays) }, time.Minute, time.Millisecond)

			exchange(t, good, accepted, message(1, []int{10}, []int{1000}))
			closeBoth(t, good, accepted)
		})
	}
}

// TestPipeWithoutCertificate checks that Dial fails if the server requires a certificate and the
// client has none, and its error names that reason.
func TestPipeWithoutCertificate(t *testing.T) {
	config := mutualTLS(t, "localhost")
	l, err := overUV(t, uv.New(uv.WithTLS(nil, config))).Listen(testContext(t), "uv://127.0.0.1:0")
	require.NoError(t, err)
	anonymous := &tls.Config{RootCAs: config.RootCAs}
	_, err = overUV(t, uv.New(uv.WithTLS(anonymous, nil))).Dial(testContext(t), "uv://localhost:"+port(t, l))
	require.ErrorContains(t, err, "certificate required")
}

// syncBuffer is a log that can be read while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) contains(s string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Contains(b.buf.Bytes(), []byte(s))
}
