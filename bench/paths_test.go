package bench

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// bigSize is a size at which the cost per byte exceeds that per message.
const bigSize = 1 << 20

// uvBasic returns a Spec of the path over one TCP connection in that dialect, with the same kind of
// memory in both libraries.
func uvBasic(dialect pipe.Dialect) Spec {
	return Spec{Transports: []string{"uv"}, Channels: []string{"basic"}, Dialect: dialect, Buffers: BuffersHuge}
}

func pathSpecs() []Spec {
	return []Spec{uvBasic(pipe.DialectNative), uvBasic(pipe.DialectCompatible)}
}

// load is a path and the messages that are measured on it.
type load struct {
	Spec
	sizes []int
	named []bool // target device
}

var (
	allSizes   = []int{0, 8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20}
	smallSizes = []int{0, 8, 4 << 10, 64 << 10, 256 << 10, 1 << 20}
	largeSizes = []int{16 << 20, 64 << 20}
	bothWays   = []bool{true, false}
)

// direct returns a Spec of the path of one-sided copies: the channel cma over shared memory.
func direct() Spec {
	return Spec{Transports: []string{"shm"}, Channels: []string{"cma"}, Dialect: pipe.DialectNative}
}

// fourLanes returns a Spec of the path over four TCP connections: the channel mpt_uv with four
// lanes.
func fourLanes() Spec {
	return Spec{Transports: []string{"uv"}, Channels: []string{"mpt_uv"}, Dialect: pipe.DialectNative, Lanes: 4}
}

// loads returns the paths to measure, each with the sizes of its messages.
func loads() []load {
	all := []load{
		{sharedSpec(pipe.DialectNative, 0), smallSizes, bothWays},
		{sharedSpec(pipe.DialectCompatible, 0), smallSizes, bothWays},
		{direct(), largeSizes, []bool{true}},
		{fourLanes(), largeSizes, []bool{true}},
	}
	for _, s := range pathSpecs() {
		all = append(all, load{s, allSizes, bothWays})
	}
	return all
}

// label returns the name of the path of s for a benchmark, in the key=value format of benchstat.
func label(s Spec) string {
	name := fmt.Sprintf("transport=%s/channel=%s/dialect=%s", s.Transports[0], s.Channels[0], s.Dialect)
	if s.PeerChannel != "" {
		name += "/peer-channel=" + s.PeerChannel
	}
	return name
}

// forEachMessage runs run as a sub-benchmark for each kind of message of the load l, with a Spec of
// the path and the message. It skips a path that does not work on this machine.
func forEachMessage(b *testing.B, l load, run func(*testing.B, Spec)) {
	for _, size := range l.sizes {
		for _, named := range l.named {
			if size == 0 && !named {
				continue // without a tensor there is no target device
			}
			b.Run(fmt.Sprintf("%s/size=%d/named=%t", label(l.Spec), size, named), func(b *testing.B) {
				needPath(b, l.Spec)
				s := l.Spec
				s.Size, s.Named = size, named
				run(b, s)
			})
		}
	}
}

// needPath skips the test if a transport or channel that s names does not work on this machine.
func needPath(t testing.TB, s Spec) {
	t.Helper()
	opts, err := s.options("test", nil)
	require.NoError(t, err)
	if err := checkViable(s, opts); err != nil {
		t.Skip(err)
	}
}

// withServer starts a server for s in a second process, and calls work with a client of it. It
// stops the server before it returns, and fails the test after an error.
func withServer(t testing.TB, s Spec, work func(*client)) {
	end, err := Go{Child: child(t)}.start(t.Context(), s, nil)
	require.NoError(t, err)
	defer end.stop()
	require.NoError(t, withServerAt(t, s, end.url, func(c *client, _ *pipe.Plan) error {
		work(c)
		return nil
	}))
}

// withServerAt opens a pipe to the server at url, calls work with a client of the pipe and its
// plan, closes the pipe, and returns the error of these steps.
func withServerAt(t testing.TB, s Spec, url string, work func(*client, *pipe.Plan) error) error {
	opts, err := s.options("test", nil)
	require.NoError(t, err)
	return withClient(t.Context(), s, opts, nil, url, work)
}

// connectedTCP returns both ends of a new TCP connection within this machine. The caller closes
// them.
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
