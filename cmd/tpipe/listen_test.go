package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/shm"
)

func requireSharedMemory(t *testing.T) {
	t.Helper()
	if err := shm.New().Viable(); err != nil {
		t.Skipf("no shared memory here: %v", err)
	}
}

// TestPingMovesToSharedMemory checks that a ping that dials a TCP URL uses shared memory if both
// ends support it, and TCP if the ping does not.
func TestPingMovesToSharedMemory(t *testing.T) {
	requireSharedMemory(t)
	echo, url := startEcho(t, "-transport", "uv,shm", "-channel", "basic,cma")
	require.True(t, strings.HasPrefix(url, "uv://127.0.0.1:"), "only what was asked for is told: %s", url)
	for transports, want := range map[string]string{"uv,shm": "shm", "shm,uv": "shm", "uv": "uv"} {
		for _, dialect := range []string{"native", "compatible"} {
			stdout, stderr, code := tpipe(t, "ping", "-to", url, "-transport", transports, "-dialect", dialect,
				"-channel", "basic", "-check", "-size", "3MiB", "-seed", "1", "-count", "10")
			require.Zero(t, code, stderr)
			require.Regexp(t, `transport +`+want+"\n", stdout)
			require.Contains(t, stdout, "10 of 10 messages came back unchanged")
		}
	}
	require.Empty(t, echo.stop())
}

// TestEchoListensOnSharedMemory checks that an echo with -listen shm:// prints a URL of shared
// memory, and that a ping can dial it.
func TestEchoListensOnSharedMemory(t *testing.T) {
	requireSharedMemory(t)
	echo, url := startEcho(t, "-transport", "shm", "-listen", "shm://")
	require.True(t, strings.HasPrefix(url, "shm://"), url)
	stdout, stderr, code := tpipe(t, "ping", "-to", url, "-transport", "shm", "-count", "10")
	require.Zero(t, code, stderr)
	require.Regexp(t, `transport +shm\n`, stdout)
	require.Empty(t, echo.stop())
}

// TestHostAndPortAreEnough checks that every command accepts HOST:PORT in place of a URL, and that
// a ping names the transport that was chosen.
func TestHostAndPortAreEnough(t *testing.T) {
	_, url := startEcho(t, "-listen", "127.0.0.1:0")
	address, tcp := strings.CutPrefix(url, "uv://")
	require.True(t, tcp, url)
	for flags, want := range map[string]string{"-transport uv": " over uv, no TLS\n", "": " over " + map[string]string{"shm": "shm\n", "uv": "uv, no TLS\n"}[withinMachine()]} {
		stdout, stderr, code := tpipe(t, append([]string{"ping", "-to", address, "-count", "1"}, strings.Fields(flags)...)...)
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, "pipe to "+url+want)
	}
	stdout, stderr, code := tpipe(t, "probe", "-to", address, "-transport", "uv")
	require.Zero(t, code, stderr)
	require.Regexp(t, `transport +uv\n`, stdout)

	store := freeport.Addr(t)
	worker := start(t, "worker", "-store", "-rendezvous", store, "-listen", "127.0.0.1:0")
	require.Equal(t, "ready as worker0 (rank 0)", worker.line())
	stdout, stderr, code = tpipe(t, "call", "-rendezvous", store, "-to", "worker0", "aten::neg", "[1]", "-listen", "127.0.0.1:0")
	require.Zero(t, code, stderr)
	require.Equal(t, "i64:[-1]\n", stdout)
}
