package hostile_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/uv"
)

// network is the transport of attacks: TCP, or TLS with a certificate that the victim accepts.
type network struct{ config *tls.Config }

var overTCP network

// overTLS returns a network whose connections use TLS, and in which both ends have the same
// certificate.
func overTLS(t testing.TB) network {
	t.Helper()
	config, err := identity()
	require.NoError(t, err)
	return network{config}
}

// identity is the configuration of both roles of both ends.
var identity = sync.OnceValues(func() (*tls.Config, error) {
	const name = "anybody"
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
		ServerName:   name,
	}, nil
})

// scaled returns n, or a quarter of it for TLS, whose handshakes are expensive. n is a number of
// connections.
func (over network) scaled(n int) int {
	if over.config == nil {
		return n
	}
	return n / 4
}

func (over network) transport() *uv.Transport {
	if over.config == nil {
		return uv.New()
	}
	return uv.New(uv.WithTLS(over.config, over.config))
}

// dial connects to addr, the address in a victim's URL, performs the handshake of TLS if the
// network has it, and returns the attacker's end.
func (over network) dial(t testing.TB, addr string) *raw {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	if over.config != nil {
		c = tls.Client(c, over.config)
	}
	return over.ready(t, c)
}

// receive returns the attacker's end of c, a connection that the victim has dialled, after the
// handshake of TLS if the network has it. The result owns c.
func (over network) receive(t testing.TB, c net.Conn) *raw {
	t.Helper()
	if over.config != nil {
		c = tls.Server(c, over.config)
	}
	return over.ready(t, c)
}

// ready performs the handshake of TLS if c is a TLS connection, and returns c as an attacker's end.
// It ignores errors of the handshake, since the victim may close connections.
func (over network) ready(t testing.TB, c net.Conn) *raw {
	t.Helper()
	r := newRaw(t, c)
	if secure, ok := c.(*tls.Conn); ok {
		_ = secure.Handshake()
	}
	return r
}
