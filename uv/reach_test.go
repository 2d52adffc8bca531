package uv_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// remote is a connection of which only the remote address is known.
type remote struct {
	transport.Conn
	addr string
}

func (r remote) RemoteAddr() string { return r.addr }

func TestReach(t *testing.T) {
	for _, c := range []struct{ advertised, peer, want string }{
		{"127.0.0.1:7000", "192.0.2.1:5", "127.0.0.1:7000"},
		{"0.0.0.0:7000", "192.0.2.1:5", "192.0.2.1:7000"},
		{"[::]:7000", "192.0.2.1:5", "192.0.2.1:7000"},
		{"[::]:7000", "[fe80::1%eth0]:5", "[fe80::1%eth0]:7000"},
		{"0.0.0.0:7000", "not an address", "0.0.0.0:7000"},
		{"nonsense", "192.0.2.1:5", "nonsense"},
	} {
		require.Equal(t, c.want, uv.New().Reach(c.advertised, remote{addr: c.peer}), "%s from %s", c.advertised, c.peer)
	}
}

// TestIsLocal checks that IsLocal returns true for loopback addresses and localhost, and false for
// wildcards, all other addresses and names, and invalid text.
func TestIsLocal(t *testing.T) {
	for addr, local := range map[string]bool{
		"127.0.0.1:0": true, "127.9.9.9:1": true, "[::1]:0": true, "::1": true, "localhost:7000": true, "localhost": true,
		"0.0.0.0:0": false, "[::]:0": false, ":7000": false, "192.0.2.1:0": false, "node17:0": false,
		"": false, "%zz": false, "127.0.0.1:none": false,
	} {
		require.Equal(t, local, uv.New().IsLocal(addr), addr)
	}
}
