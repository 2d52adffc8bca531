package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// authority signs certificates for a test.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // of its own certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key = template, newKey(t)
	a.file, _ = a.issue(t, "authority", template)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}

// member writes a new certificate for name, signed by a, and its key to files and returns their
// paths. The certificate is valid for the host name+".example" and, if host is true, for 127.0.0.1.
func (a *authority) member(t *testing.T, name string, host bool) (cert, key string) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{name + ".example"},
	}
	if host {
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	return a.issue(t, name, template)
}

// issue writes the certificate that template describes, signed by a, and its key to files, which
// are named after name, and returns their paths. The key is new unless template is a's own
// certificate.
func (a *authority) issue(t *testing.T, name string, template *x509.Certificate) (cert, key string) {
	t.Helper()
	own := a.key
	if template != a.cert {
		own = newKey(t)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &own.PublicKey, a.key)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(own)
	require.NoError(t, err)
	return writePEM(t, a.dir, name+".crt", "CERTIFICATE", der), writePEM(t, a.dir, name+".key", "PRIVATE KEY", secret)
}

func writePEM(t *testing.T, dir, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

var mismatch = uv.ErrTLSMismatch.Error()

func TestSendOverTLS(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	cert, key := ours.member(t, "store", true)
	remoteCert, remoteKey := ours.member(t, "remote", false)
	client, clientKey := ours.member(t, "trainer", false)
	unknown, unknownKey := theirs.member(t, "stranger", false)

	own := "-tls-cert " + cert + " -tls-key " + key
	remote := "-tls-cert " + remoteCert + " -tls-key " + remoteKey
	mutual := own + " -tls-ca " + ours.file
	trust := "-tls-ca " + ours.file
	me := " -tls-cert " + client + " -tls-key " + clientKey
	for what, c := range map[string]struct {
		recv, send string
		want       string // output of send: on stdout, or after ! on stderr
		log        string // output of recv, likewise
	}{
		"server":                  {own, trust, "TLS 1.3 with CN=store (store.example, 127.0.0.1)", "TLS 1.3, the peer showed no certificate"},
		"mutual":                  {mutual, trust + me, "TLS 1.3 with CN=store (store.example, 127.0.0.1)", "TLS 1.3 with CN=trainer (trainer.example)"},
		"name":                    {own, trust + " -tls-name store.example", "TLS 1.3 with CN=store", "TLS 1.3"},
		"name not in the address": {remote, trust + " -tls-name remote.example", "TLS 1.3 with CN=remote", "TLS 1.3"},

		"wrong name":       {own, trust + " -tls-name other.example", "! not other.example", "! bad certificate"},
		"no name":          {remote, trust, "! cannot validate certificate for 127.0.0.1", "! bad certificate"},
		"wrong authority":  {own, "-tls-ca " + theirs.file, "! certificate signed by unknown authority", "! bad certificate"},
		"system authority": {own, "-tls", "! certificate signed by unknown authority", "! bad certificate"},
		"no certificate":   {mutual, trust, "! certificate required", "! didn't provide a certificate"},
		"of unknown":       {mutual, trust + " -tls-cert " + unknown + " -tls-key " + unknownKey, "! unknown certificate authority", "! certificate signed by unknown authority"},
		"plain sender":     {own, "", "! " + mismatch, "! " + mismatch},
		"plain receiver":   {"", trust, "! " + mismatch, "! " + mismatch},
	} {
		for _, dialect := range []string{"native", "compatible"} {
			t.Run(what+" "+dialect, func(t *testing.T) {
				recv, address := startRecv(t, t.TempDir(), append(strings.Fields(c.recv), "-dialect", dialect)...)
				stdout, stderr, code := tpipe(t, append([]string{"send", "testdata", "-to", address}, strings.Fields(c.send)...)...)
				want, bad := strings.CutPrefix(c.want, "! ")
				require.Equal(t, bad, code == exitFailed, stderr)
				require.Contains(t, stdout+stderr, want)
				require.LessOrEqual(t, strings.Count(stderr, "\n"), 1, stderr)
				log, isError := strings.CutPrefix(c.log, "! ")
				if isError {
					recv.stderr.await(t, log)
				}
				recv.signal(os.Interrupt)
				printed, warned, code := recv.wait()
				require.Zero(t, code)
				require.Equal(t, isError, warned != "", warned)
				require.Contains(t, printed+warned, log)
				require.Equal(t, !bad, len(safetensorsIn(t, recv.out())) == 1)
			})
		}
	}
}

func TestSendJSONShowsTheIdentity(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.member(t, "store", true)
	_, address := startRecv(t, t.TempDir(), "-tls-cert", cert, "-tls-key", key)
	stdout, stderr, code := tpipe(t, "send", "-json", "-to", address, "-tls-ca", a.file, "testdata")
	require.Zero(t, code, stderr)
	var r transfer
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, &identity{Version: "TLS 1.3", Subject: "CN=store", Issuer: "CN=authority", Names: []string{"store.example", "127.0.0.1"}}, r.TLS)
}

func TestPingOverTLS(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.member(t, "echo", true)
	mine, myKey := a.member(t, "me", false)
	echo, url := startEcho(t, "-tls-cert", cert, "-tls-key", key, "-tls-ca", a.file)
	stdout, stderr, code := tpipe(t, "ping", "-to", url, "-check", "-count", "10", "-tls-ca", a.file, "-tls-cert", mine, "-tls-key", myKey)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "TLS 1.3 with CN=echo (echo.example, 127.0.0.1)")
	_, stderr, code = tpipe(t, "ping", "-to", url, "-count", "1")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, mismatch)
	echo.stderr.await(t, "handshake failed")
	require.Contains(t, echo.stop(), "CN=me (me.example)")
}

// TestLanesOverTLS checks that the channel mpt_uv works on a pipe over TLS, in both dialects.
func TestLanesOverTLS(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.member(t, "echo", true)
	mine, myKey := a.member(t, "me", false)
	_, url := startEcho(t, "-channel", "mpt_uv", "-lanes", "2", "-tls-cert", cert, "-tls-key", key, "-tls-ca", a.file)
	for _, dialect := range []string{"native", "compatible"} {
		stdout, stderr, code := tpipe(t, "ping", "-to", url, "-channel", "mpt_uv", "-lanes", "2", "-dialect", dialect,
			"-check", "-size", "4MiB", "-seed", "1", "-count", "10", "-tls-ca", a.file, "-tls-cert", mine, "-tls-key", myKey)
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, "TLS 1.3 with CN=echo")
		require.Regexp(t, `cpu:0 to cpu:0 +mpt_uv`, stdout)
		require.Contains(t, stdout, "10 of 10 messages came back unchanged")
	}
}

// TestIdentityInOneLine checks the text of the identity that a peer has proved, and that the text of
// a path names the transport and has an identity only for TCP.
func TestIdentityInOneLine(t *testing.T) {
	names := []string{"localhost", "127.0.0.1"}
	for want, id := range map[string]*identity{
		"no TLS": nil,
		"TLS 1.3, the peer showed no certificate":             {Version: "TLS 1.3"},
		"TLS 1.3 with CN=store":                               {Version: "TLS 1.3", Subject: "CN=store"},
		"TLS 1.3 with a certificate for localhost, 127.0.0.1": {Version: "TLS 1.3", Names: names},
		"TLS 1.3 with CN=a (localhost, 127.0.0.1)":            {Version: "TLS 1.3", Subject: "CN=a", Names: names},
		`TLS 1.3 with "CN=\x1b[2J"`:                           {Version: "TLS 1.3", Subject: "CN=\x1b[2J"},
	} {
		require.Equal(t, want, id.String())
		require.Equal(t, "over uv, "+want, pathText(&pipe.Plan{Transport: "uv"}, id))
		require.Equal(t, "over shm", pathText(&pipe.Plan{Transport: "shm"}, id))
	}
}
