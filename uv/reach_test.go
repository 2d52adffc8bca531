package uv_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// remote is a connection of which only the far end is known.
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
