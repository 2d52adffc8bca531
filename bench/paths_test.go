package bench

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

var sizes = []int{0, 8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20}

// bigSize is that from which bytes cost, rather than messages.
const bigSize = 1 << 20

// uvBasic is the path over one TCP connection, in a dialect, with the same memory
// in both libraries.
func uvBasic(dialect string) Spec {
	return Spec{Transports: []string{"uv"}, Channels: []string{"basic"}, Dialect: dialect, Buffers: BuffersHuge}
}

func pathSpecs() []Spec {
	return []Spec{uvBasic(pipe.DialectNative), uvBasic(pipe.DialectCompatible)}
}

// label names a path as benchstat wants it. Every spec here leads to one path.
func label(s Spec) string {
	return fmt.Sprintf("transport=%s/channel=%s/dialect=%s", s.Transports[0], s.Channels[0], s.Dialect)
}

// forEachSize runs a benchmark for all sizes, with and without the target device
// named.
func forEachSize(b *testing.B, path Spec, run func(*testing.B, Spec)) {
	for _, size := range sizes {
		for _, named := range []bool{true, false} {
			if size == 0 && !named {
				continue // without a tensor there is nothing to name
			}
			b.Run(fmt.Sprintf("%s/size=%d/named=%t", label(path), size, named), func(b *testing.B) {
				s := path
				s.Size, s.Named = size, named
				run(b, s)
			})
		}
	}
}

// connected runs work on a client whose server is a second process.
func connected(t testing.TB, s Spec, work func(*client)) {
	end, err := Go{Child: child(t)}.start(t.Context(), s)
	require.NoError(t, err)
	defer end.stop()
	require.NoError(t, dialed(t, s, end.url, func(c *client, _ *pipe.Plan) error {
		work(c)
		return nil
	}))
}

// dialed runs work on a client of the server at url.
func dialed(t testing.TB, s Spec, url string, work func(*client, *pipe.Plan) error) error {
	opts, err := s.options("test", nil)
	require.NoError(t, err)
	return withClient(t.Context(), s, opts, url, work)
}

// connectedTCP are both ends of a connection.
func connectedTCP(t testing.TB) (dialed, accepted net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dialed, err = net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	accepted, err = l.Accept()
	require.NoError(t, err)
	return dialed, accepted
}
