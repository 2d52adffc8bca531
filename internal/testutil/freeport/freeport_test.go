package freeport

import (
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestAddr(t *testing.T) {
	addr := Addr(t)
	require.True(t, strings.HasPrefix(addr, own(os.Getpid()).String()+":"), addr)
	_, err := net.Dial("tcp", addr)
	require.Error(t, err)
	l, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

func TestOwn(t *testing.T) {
	seen := make(map[string]bool)
	for bit := range 22 {
		ip := own(1 << bit)
		require.True(t, ip.IsLoopback())
		seen[ip.String()] = true
	}
	if runtime.GOOS == "linux" {
		require.Len(t, seen, 22)
		require.False(t, seen["127.0.0.1"])
	}
}
