package uv_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/transporttest"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{key: newKey(t), pool: x509.NewCertPool()}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "authority"},
		NotAfter:              time.Now().Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	require.NoError(t, err)
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	a.pool.AddCert(a.cert)
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

// issue returns a new certificate for name, a host name or an IP address, that a has signed, with
// its key. Each of adjust may change the certificate before it is signed.
func (a *authority) issue(t testing.TB, name string, adjust ...func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: name},
		NotAfter:     time.Now().Add(time.Hour),
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	for _, f := range adjust {
		f(template)
	}
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func expired(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }

// mutual returns a TLS configuration for either role: it has a certificate of a for name, and
// requires of the peer a certificate that a has signed. Each of adjust may change the certificate
// before it is signed.
func (a *authority) mutual(t testing.TB, name string, adjust ...func(*x509.Certificate)) *tls.Config {
	t.Helper()
	return &tls.Config{
		Certificates: []tls.Certificate{a.issue(t, name, adjust...)},
		RootCAs:      a.pool,
		ClientCAs:    a.pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}
}

// newSecured returns a transport that uses config for dialling and for accepting.
func newSecured(config *tls.Config) *uv.Transport { return uv.New(uv.WithTLS(config, config)) }

func TestConformanceTLS(t *testing.T) { testConformanceTLS(t, "uv-tls") }

func TestConformanceTLSWithBusyPolling(t *testing.T) {
	short.Skip(t, "the conformance suite once more")
	testConformanceTLS(t, "uv-tls-busy", uv.WithBusyPolling())
}

func testConformanceTLS(t *testing.T, name string, opts ...uv.Option) {
	config := newAuthority(t).mutual(t, "127.0.0.1")
	transporttest.Run(t, transporttest.Backend{
		Name: name,
		New: func(*testing.T) transport.Transport {
			return uv.New(append(opts, uv.WithTLS(config, config))...)
		},
		Addr: "127.0.0.1:0",
		DialRaw: func(addr string) (io.WriteCloser, error) {
			return dialRaw(addr, config)
		},
		AppendHeader: func(dst []byte, size int) []byte {
			return binary.LittleEndian.AppendUint64(dst, uint64(size))
		},
	})
}

// dialRaw connects to a listener of this package by crypto/tls, reads the empty frame that the
// listener sends first, and returns the connection, with which a test can violate the framing.
func dialRaw(addr string, config *tls.Config) (*tls.Conn, error) {
	config = config.Clone()
	config.NextProtos = []string{uv.Protocol}
	c, err := tls.Dial("tcp", addr, config)
	if err != nil {
		return nil, err
	}
	_, err = io.ReadFull(c, make([]byte, 8))
	return c, err
}

// dialAndRead dials the listener l with tr and accepts the connection. It returns the error of
// Dial, or of closing the dialled end, and that of NextFrame at the accepted end. Both ends are
// closed.
func dialAndRead(t *testing.T, tr *uv.Transport, l transport.Listener) (dialled, accepted error) {
	t.Helper()
	said := make(chan error, 1)
	go func() {
		c, err := tr.Dial(t.Context(), l.Addr())
		if err == nil {
			err = c.Close()
		}
		said <- err
	}()
	c, err := l.Accept(t.Context())
	require.NoError(t, err)
	_, accepted = c.NextFrame()
	require.NoError(t, c.Close())
	return <-said, accepted
}

func TestIdentity(t *testing.T) {
	a := newAuthority(t)
	server, client := newSecured(a.mutual(t, "127.0.0.1")), newSecured(a.mutual(t, "worker-3"))
	l := listen(t, server, "127.0.0.1")
	dialled, accepted := connect(t, client, l, l.Addr())
	require.NoError(t, dialled.WriteFrames(transport.Frame{}))
	_, err := accepted.NextFrame()
	require.NoError(t, err)
	for c, name := range map[transport.Conn]string{dialled: "127.0.0.1", accepted: "worker-3"} {
		for range 2 {
			id, err := c.(transport.Identified).PeerIdentity()
			require.NoError(t, err)
			state := id.TLS
			require.EqualValues(t, tls.VersionTLS13, state.Version)
			require.Equal(t, name, state.VerifiedChains[0][0].Subject.CommonName)
			require.NoError(t, c.Close())
		}
	}
}

// TestRefusals checks the errors if one end rejects the other's certificate: Dial and the calls on
// the accepted end return a HandshakeError with the reason, whichever end has rejected.
func TestRefusals(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	good := func() *tls.Config { return a.mutual(t, "127.0.0.1") }
	for _, tc := range []struct {
		name           string
		client, server *tls.Config
		dialled        string // error of Dial
		accepted       string // error of the accepted end
		byClient       bool   // the client rejects the server
	}{
		{"no client certificate", &tls.Config{RootCAs: a.pool}, good(), "certificate required", "didn't provide a certificate", false},
		{"client of another authority", withRoots(other.mutual(t, "x"), a), good(), "tls: ", "unknown authority", false},
		{"expired client", a.mutual(t, "x", expired), good(), "expired certificate", "has expired", false},
		{"server of another authority", good(), other.mutual(t, "127.0.0.1"), "unknown authority", "bad certificate", true},
		{"server with another name", good(), a.mutual(t, "node17"), "IP SANs", "bad certificate", true},
		{"expired server", good(), a.mutual(t, "127.0.0.1", expired), "has expired", "bad certificate", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := listen(t, newSecured(tc.server), "127.0.0.1")
			dialled, accepted := dialAndRead(t, newSecured(tc.client), l)
			require.ErrorContains(t, dialled, tc.dialled)
			require.ErrorContains(t, accepted, tc.accepted)
			for _, err := range []error{dialled, accepted} {
				_, ok := errors.AsType[*uv.HandshakeError](err)
				require.True(t, ok)
				require.NotErrorIs(t, err, uv.ErrTLSMismatch)
			}
			if tc.client.Certificates != nil {
				refused := accepted
				if tc.byClient {
					refused = dialled
				}
				_, ok := errors.AsType[*tls.CertificateVerificationError](refused)
				require.True(t, ok, "%v", refused)
			}
		})
	}
}

func withRoots(c *tls.Config, a *authority) *tls.Config {
	c.RootCAs = a.pool
	return c
}

// TestRoles checks that a transport with a TLS configuration for one role only works in that role.
// In the other role, and with a server configuration without a certificate, it returns
// ErrTLSConfig.
func TestRoles(t *testing.T) {
	config := newAuthority(t).mutual(t, "127.0.0.1")
	server, client := uv.New(uv.WithTLS(nil, config)), uv.New(uv.WithTLS(config, nil))
	l := listen(t, server, "127.0.0.1")
	connect(t, client, l, l.Addr())
	_, err := server.Dial(t.Context(), l.Addr())
	require.ErrorIs(t, err, uv.ErrTLSConfig)
	_, err = client.Listen(t.Context(), "127.0.0.1")
	require.ErrorIs(t, err, uv.ErrTLSConfig)
	_, err = uv.New(uv.WithTLS(nil, &tls.Config{})).Listen(t.Context(), "127.0.0.1")
	require.ErrorIs(t, err, uv.ErrTLSConfig)
	require.ErrorContains(t, err, "certificate")
}

// TestOldVersionsAreRefused checks that a listener refuses a client of TLS 1.2 even if its Config,
// or one that GetConfigForClient returns, allows that version. The caller's Config must not change.
func TestOldVersionsAreRefused(t *testing.T) {
	old := newAuthority(t).mutual(t, "127.0.0.1")
	old.MinVersion = tls.VersionTLS10
	picked := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return old, nil }}
	for name, server := range map[string]*tls.Config{"config": old, "callback": picked} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, uv.New(uv.WithTLS(nil, server)), "127.0.0.1")
			limited := old.Clone()
			limited.MaxVersion = tls.VersionTLS12
			_, err := tls.Dial("tcp", l.Addr(), limited)
			require.ErrorContains(t, err, "protocol version not supported")
			connect(t, newSecured(old), l, l.Addr())
		})
	}
	require.EqualValues(t, tls.VersionTLS10, old.MinVersion, "the caller's Config is not changed")
	require.Empty(t, old.NextProtos)
}

// TestOtherTLSImplementations checks that both roles work with a peer that does not negotiate this
// package's protocol: no empty frame is sent, and none is expected.
func TestOtherTLSImplementations(t *testing.T) {
	config := newAuthority(t).mutual(t, "127.0.0.1")
	t.Run("listener", func(t *testing.T) {
		l := listen(t, newSecured(config), "127.0.0.1")
		peer, err := tls.Dial("tcp", l.Addr(), config)
		require.NoError(t, err)
		defer peer.Close()
		c, err := l.Accept(t.Context())
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.WriteFrames(transport.Frame{[]byte("x")}))
		got := make([]byte, 9)
		_, err = io.ReadFull(peer, got)
		require.NoError(t, err)
		require.Equal(t, "\x01\x00\x00\x00\x00\x00\x00\x00x", string(got))
	})
	t.Run("dialler", func(t *testing.T) {
		l, err := tls.Listen("tcp", "127.0.0.1:0", config)
		require.NoError(t, err)
		defer l.Close()
		said := make(chan error, 1)
		go func() {
			c, err := l.Accept()
			if err == nil {
				defer c.Close()
				_, err = c.Write([]byte("\x01\x00\x00\x00\x00\x00\x00\x00x"))
			}
			said <- err
		}()
		c, err := newSecured(config).Dial(t.Context(), l.Addr().String())
		require.NoError(t, err)
		defer c.Close()
		read(t, c, 1, [][]byte{make([]byte, 1)})
		require.NoError(t, <-said)
	})
}

// TestReachKeepsTheName checks that Reach appends the name that the peer has proved to a numeric
// address, so that Dial verifies this name again, and that it removes a name that the peer has
// appended.
func TestReachKeepsTheName(t *testing.T) {
	a := newAuthority(t)
	tr := newSecured(a.mutual(t, "localhost"))
	l := listen(t, tr, "127.0.0.1")
	addr, err := uv.ParseAddr(l.Addr())
	require.NoError(t, err)
	named := uv.Addr{Host: "localhost", Port: addr.Port}.String()
	dialled, _ := connect(t, tr, l, named)

	_, err = tr.Dial(t.Context(), l.Addr())
	require.ErrorContains(t, err, "IP SANs")
	require.Equal(t, l.Addr()+"#localhost", tr.Reach(l.Addr(), dialled))
	require.Equal(t, l.Addr()+"#localhost", tr.Reach(l.Addr()+"#evil", dialled))
	require.Equal(t, named, tr.Reach(named, dialled))
	require.Equal(t, "nonsense:", tr.Reach("nonsense:", dialled))
	connect(t, tr, l, tr.Reach(l.Addr(), dialled))

	_, err = uv.New().Dial(t.Context(), l.Addr()+"#localhost")
	_, bad := errors.AsType[*uv.AddrError](err)
	require.True(t, bad, "%v", err)
}

func TestReachOnTheWildcard(t *testing.T) {
	tr := newSecured(newAuthority(t).mutual(t, "localhost"))
	l := listen(t, tr, "127.0.0.1")
	addr, err := uv.ParseAddr(l.Addr())
	require.NoError(t, err)
	dialled, _ := connect(t, tr, l, uv.Addr{Host: "localhost", Port: addr.Port}.String())
	require.Equal(t, fmt.Sprintf("127.0.0.1:%d#localhost", addr.Port),
		tr.Reach(fmt.Sprintf("0.0.0.0:%d", addr.Port), dialled))
}

// TestServerName checks that Dial verifies the ServerName of the client configuration and not the
// host that is dialled.
func TestServerName(t *testing.T) {
	config := newAuthority(t).mutual(t, "node17")
	config.ServerName = "node17"
	tr := newSecured(config)
	l := listen(t, tr, "127.0.0.1")
	connect(t, tr, l, l.Addr())
}

func TestDialGivesUpInTheHandshake(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := newSecured(&tls.Config{}).Dial(ctx, l.Addr().String())
		failed <- err
	}()
	c, err := l.Accept()
	require.NoError(t, err)
	defer c.Close()
	_, err = io.ReadFull(c, make([]byte, 100)) // the handshake has begun
	require.NoError(t, err)
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
}

// TestResumption checks that PeerIdentity returns verified certificates at both ends, also after a
// TLS session was resumed.
func TestResumption(t *testing.T) {
	config := newAuthority(t).mutual(t, "127.0.0.1")
	config.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	tr := newSecured(config)
	l := listen(t, tr, "127.0.0.1")
	for _, resumed := range []bool{false, true} {
		dialled, accepted := connect(t, tr, l, l.Addr())
		for _, c := range []transport.Conn{dialled, accepted} {
			id, err := c.(transport.Identified).PeerIdentity()
			require.NoError(t, err)
			state := id.TLS
			require.Equal(t, resumed, state.DidResume)
			require.NotEmpty(t, state.VerifiedChains)
		}
	}
}
