package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/shm"
)

func requireSharedMemory(t *testing.T) {
	t.Helper()
	if err := shm.New().Viable(); err != nil {
		t.Skipf("no shared memory here: %v", err)
	}
}

// A ping that dials TCP uses shared memory if both ends support it.
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

// Both ends may use shared memory only, with a name chosen by the user.
func TestEchoListensOnSharedMemory(t *testing.T) {
	requireSharedMemory(t)
	echo, url := startEcho(t, "-transport", "shm", "-listen", "shm://")
	require.True(t, strings.HasPrefix(url, "shm://"), url)
	stdout, stderr, code := tpipe(t, "ping", "-to", url, "-transport", "shm", "-count", "10")
	require.Zero(t, code, stderr)
	require.Regexp(t, `transport +shm\n`, stdout)
	require.Empty(t, echo.stop())
}
