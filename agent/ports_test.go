package agent_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// freeURL is where nobody listens yet.
func freeURL(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return "tcp://" + l.Addr().String()
}
