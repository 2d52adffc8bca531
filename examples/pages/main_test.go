package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

// asCommand is the environment variable that makes the test program run as the command.
const asCommand = "EXAMPLE_PAGES"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	leakcheck.Main(m)
}

// start starts the example with args as a process, whose output goes to out and whose log and errors
// go to log. The process is killed when the test ends.
func start(t *testing.T, out, log *strings.Builder, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0], args...)
	c.Env, c.Stdout, c.Stderr = append(os.Environ(), asCommand+"=1"), out, log
	require.NoError(t, c.Start())
	return c
}

// TestPages runs the commands of the package comment over each path, and tests their output.
func TestPages(t *testing.T) {
	cert, key := certificate(t)
	for _, over := range []string{"shm", "tcp", "tls"} {
		t.Run(over, func(t *testing.T) {
			args := []string{"-over", over, "-cert", cert, "-key", key, "-rendezvous", "tcp://" + freeport.Addr(t)}
			var out, logs [2]strings.Builder
			prefill := start(t, &out[0], &logs[0], append(args, "-role", "prefill")...)
			decode := start(t, &out[1], &logs[1], append(args, "-role", "decode")...)
			require.NoError(t, decode.Wait(), logs[1].String())
			require.NoError(t, prefill.Wait(), logs[0].String())
			require.Empty(t, out[0].String())
			require.Equal(t, "64 pages of 256 KiB are at the chosen places\n", out[1].String())
		})
	}
}

// TestUnknownPath requires an error that names the paths, and one for a file that is missing.
func TestUnknownPath(t *testing.T) {
	_, err := path("udp", "", "")
	require.EqualError(t, err, "-over udp: want shm, tcp or tls")
	_, err = path("tls", "no such file", "")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestUnknownRole requires that a process with another role names the roles and does not join, which
// would be as prefill.
func TestUnknownRole(t *testing.T) {
	var out, logs strings.Builder
	err := start(t, &out, &logs, "-role", "serve").Wait()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 1, exit.ExitCode())
	require.Equal(t, "pages: -role serve: want prefill or decode\n", logs.String())
	require.Empty(t, out.String())
}

// TestLength requires fewer than 150 lines, which a reader can take in at once.
func TestLength(t *testing.T) {
	text, err := os.ReadFile("main.go")
	require.NoError(t, err)
	require.Less(t, strings.Count(string(text), "\n"), 150)
}

// certificate writes a new certificate for 127.0.0.1 and its key to files, as the openssl command of
// the package comment does, and returns their names.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	public, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	cert, key = t.TempDir()+"/cert.pem", t.TempDir()+"/key.pem"
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: public}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	return cert, key
}
