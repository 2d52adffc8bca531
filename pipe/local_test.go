package pipe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// partlyLocal declares that one of its addresses is local.
type partlyLocal struct{ transport.Transport }

func (partlyLocal) IsLocal(addr string) bool { return addr == "inside" }

// TestContextIsLocal checks that IsLocal returns the answer of the URL's transport, and false if
// the transport does not declare which of its addresses are local. For an unknown transport or a
// malformed URL the error matches ErrURL.
func TestContextIsLocal(t *testing.T) {
	c, err := pipe.New(pipe.Options{
		Transports: []pipe.TransportEntry{
			{Name: "uv", Transport: uv.New()},
			{Name: "shm", Priority: 1, Transport: shm.New()},
			{Name: "mem", Priority: 2, Transport: mem.New(nil)},
			{Name: "undeclared", Priority: 3, Transport: struct{ transport.Transport }{mem.New(nil)}},
			{Name: "partly", Priority: 4, Transport: partlyLocal{mem.New(nil)}},
			{Name: "forbidden", Priority: 5, Transport: mem.New(nil)},
		},
		Policy: pipe.Policy{Transports: pipe.Rule{Forbid: []string{"forbidden"}}},
	})
	require.NoError(t, err)
	defer c.Close()
	for url, want := range map[string]bool{
		"shm://": true, "shm:///tmp/x": true, "mem://here": true,
		"uv://127.0.0.1:0": true, "uv://127.9.9.9:1": true, "uv://[::1]:0": true, "uv://localhost:7000": true,
		"uv://0.0.0.0:0": false, "uv://[::]:0": false, "uv://:7000": false, "uv://192.0.2.1:0": false, "uv://node17:0": false,
		"uv://%zz": false, "uv://": false,
		"undeclared://": false, "undeclared://127.0.0.1:0": false,
		"partly://inside": true, "partly://outside": false,
		"forbidden://": true, // it is known, though not used
	} {
		local, err := c.IsLocal(url)
		require.NoError(t, err, url)
		require.Equal(t, want, local, url)
	}
	for _, url := range []string{"quic://127.0.0.1:0", "ib://", "", "127.0.0.1:0", "mem"} {
		local, err := c.IsLocal(url)
		require.ErrorIs(t, err, pipe.ErrURL, url)
		require.False(t, local)
	}
}
