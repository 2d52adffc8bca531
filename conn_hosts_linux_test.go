package tensorpipe_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testcert"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/twohosts"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// asHTTPServer is the environment variable of the process on the other host, with the url at which it
// listens and the file of its certificate and key.
const asHTTPServer = "TENSORPIPE_TEST_HTTP"

// TestHTTPServer runs only in the process on the other host of TestConnsBetweenHosts. It serves HTTP
// over Conns with TLS, prints the url, answers requests with their bodies, and stops when its standard
// input ends.
func TestHTTPServer(t *testing.T) {
	url, file, ok := strings.Cut(os.Getenv(asHTTPServer), " ")
	if !ok {
		t.Skip("the other process of TestConnsBetweenHosts")
	}
	pair, err := tls.LoadX509KeyPair(file, file)
	require.NoError(t, err)
	trusted := x509.NewCertPool()
	trusted.AddCert(pair.Leaf)
	c, err := tensorpipe.DefaultProfile().WithTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: trusted, ClientAuth: tls.RequireAndVerifyClientCert,
	}).NewContext(pipe.Options{})
	require.NoError(t, err)
	l, err := c.ListenConn(t.Context(), url)
	require.NoError(t, err)
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err == nil {
			_, _ = w.Write(body)
		}
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	fmt.Println(l.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	require.NoError(t, err)
	require.NoError(t, server.Close())
	require.ErrorIs(t, <-served, http.ErrServerClosed)
	require.NoError(t, c.Close())
}

// writePEM writes the certificate of config and its key to a file, and returns the path.
func writePEM(t *testing.T, config *tls.Config) string {
	t.Helper()
	cert := config.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	require.NoError(t, err)
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
	path := filepath.Join(t.TempDir(), "cert.pem")
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return path
}

// startHTTPServer runs TestHTTPServer on the other host with the certificate of config, and returns
// its url. The process ends in order when the test ends.
func startHTTPServer(t *testing.T, hosts twohosts.Hosts, config *tls.Config) (url string) {
	t.Helper()
	server := hosts.Command(os.Args[0], "-test.run=^TestHTTPServer$")
	server.Env = append(os.Environ(), fmt.Sprintf("%s=uv://%s:0 %s", asHTTPServer, hosts.There, writePEM(t, config)))
	server.Stderr = os.Stderr
	stdin, err := server.StdinPipe()
	require.NoError(t, err)
	stdout, err := server.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	out := bufio.NewReader(stdout)
	url, err = out.ReadString('\n')
	t.Cleanup(func() {
		require.NoError(t, stdin.Close())
		_, _ = io.Copy(io.Discard, out)
		require.NoError(t, server.Wait())
	})
	require.NoError(t, err)
	return strings.TrimSpace(url)
}

// TestConnsBetweenHosts checks that Conns work between two hosts over TCP with TLS: bytes, HTTP with
// many requests at once over one session, and the rejection of a client without a certificate.
func TestConnsBetweenHosts(t *testing.T) {
	hosts := twohosts.New(t)
	leakcheck.Check(t)
	config := testcert.New(t, hosts.There)
	url := startHTTPServer(t, hosts, config)
	c, err := tensorpipe.DefaultProfile().WithTLS(config).NewContext(pipe.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.DialConn(ctx, url) }}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport}
	var posts sync.WaitGroup
	for i := range 20 {
		posts.Go(func() {
			body := bytes.Repeat([]byte{byte(i)}, i*50_000)
			answer, err := client.Post("http://other.host/", "", bytes.NewReader(body))
			if !assert.NoError(t, err) {
				return
			}
			got, err := io.ReadAll(answer.Body)
			assert.NoError(t, err)
			assert.NoError(t, answer.Body.Close())
			assert.True(t, bytes.Equal(body, got), "%d bytes returned instead of %d, or others", len(got), len(body))
		})
	}
	posts.Wait()

	dialled, err := c.DialConn(t.Context(), url)
	require.NoError(t, err)
	conn := dialled.(*pipe.Conn)
	require.Equal(t, "uv", conn.Plan().Transport)
	require.Equal(t, hosts.There, conn.RemoteAddr().(*net.TCPAddr).IP.String())
	state, ok := conn.TLS()
	require.True(t, ok)
	require.Equal(t, config.Certificates[0].Certificate[0], state.PeerCertificates[0].Raw)
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: other.host\r\nConnection: close\r\n\r\n")
	require.NoError(t, err)
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Contains(t, string(answer), "200 OK")
	require.NoError(t, conn.Close())

	_, err = tensorpipe.DialConn(t.Context(), url)
	require.ErrorContains(t, err, "TLS")
}
