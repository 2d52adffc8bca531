package pipe_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// path is a combination of transport, channel and dialect under test.
type path struct {
	name    string
	dialect pipe.Dialect
	url     string // where to listen
	inline  int    // the limit of inline parts in bytes
	opts    func() pipe.Options
	refused error // why it does not work on this machine
	chosen  bool  // also tested under the race detector
}

// pathTransport is a transport of paths.
type pathTransport struct {
	name    string
	url     string
	entry   func() pipe.TransportEntry
	refused error
}

// pathChannel is a channel of paths. It may use the transport of the path for its own
// connections.
type pathChannel struct {
	name     string
	dialects []pipe.Dialect
	entry    func(over transport.Transport) pipe.ChannelEntry
	refused  error
}

func transports() []pathTransport {
	network := mem.NewNetwork()
	const loopback = "uv://127.0.0.1:0"
	named := func(name string, t transport.Transport) pipe.TransportEntry {
		return pipe.TransportEntry{Name: name, Priority: 1, Transport: t}
	}
	return []pathTransport{
		{"mem", "mem://", func() pipe.TransportEntry { return named("mem", mem.New(network)) }, nil},
		{"uv", loopback, func() pipe.TransportEntry { return named("uv", uv.New()) }, nil},
		{"tls", loopback, func() pipe.TransportEntry { return named("uv", overTLS()) }, nil},
		{"shm", "shm://", func() pipe.TransportEntry { return named("shm", shm.New()) }, shm.New().Viable()},
	}
}

// dialects returns the dialects in which a channel is tested by default.
func dialects() []pipe.Dialect { return []pipe.Dialect{pipe.DialectCompatible, pipe.DialectNative} }

func channels() []pathChannel {
	constant := func(name string, f channel.Factory) pathChannel {
		return pathChannel{name, dialects(), func(transport.Transport) pipe.ChannelEntry {
			return pipe.ChannelEntry{Name: name, Priority: 1000, Factory: f}
		}, f.Viable()}
	}
	return []pathChannel{
		constant("basic", basic.New()),
		constant("xth", xth.New()),
		constant("cma", cma.New(cma.Options{})),
		{"mpt", dialects(), func(over transport.Transport) pipe.ChannelEntry {
			f := mpt.New(mpt.Lanes{Count: 2, Transport: over, Addr: laneAddr(over)})
			return pipe.ChannelEntry{Name: mpt.UVName, Priority: 1000, Factory: f}
		}, nil},
	}
}

// laneAddr returns the address at which lanes listen: "" for the default or, over shared memory, a
// new name that is unique on this machine.
func laneAddr(over transport.Transport) string {
	if _, ok := over.(*shm.Transport); !ok {
		return ""
	}
	return fmt.Sprintf("lanes of %d, %d", os.Getpid(), laneNames.Add(1))
}

var laneNames atomic.Int64

// paths returns the paths under test: all of them or, under the race detector, half of them. In
// that half each combination of a transport and a channel, of a transport and a dialect, and of a
// channel and a dialect still occurs.
func paths() []path {
	return slices.DeleteFunc(allPaths(), func(p path) bool { return race.Enabled && !p.chosen })
}

func allPaths() []path {
	var out []path
	for i, over := range transports() {
		for j, channel := range channels() {
			for k, dialect := range channel.dialects {
				out = append(out, path{
					chosen:  (i+j+k)%2 == 0,
					name:    over.name + "+" + channel.name + "+" + string(dialect),
					dialect: dialect,
					url:     over.url,
					inline:  inlineLimit(over.name, dialect),
					refused: cmp.Or(over.refused, channel.refused),
					opts: func() pipe.Options {
						entry := over.entry()
						return pipe.Options{
							Name:       "test",
							Dialect:    dialect,
							NoEager:    over.name == "mem", // so that both ways are tested
							Transports: []pipe.TransportEntry{entry},
							Channels:   []pipe.ChannelEntry{channel.entry(entry.Transport)},
						}
					},
				})
			}
		}
	}
	return out
}

// inlineLimit returns the documented value of Plan.Inline, in bytes, for a pipe over the named
// transport in the dialect.
func inlineLimit(transport string, dialect pipe.Dialect) int {
	switch {
	case dialect == pipe.DialectCompatible:
		return 0
	case transport == "shm":
		return 2 << 20
	default:
		return 64 << 10
	}
}

// memPath returns the simplest path of the compatible dialect: process memory and the channel
// basic. It is for tests that do not depend on the path.
func memPath() path    { return pathNamed("mem+basic+compatible") }
func nativePath() path { return pathNamed("mem+basic+native") }

func pathNamed(name string) path {
	for _, p := range allPaths() {
		if p.name == name {
			return p
		}
	}
	panic("no path " + name)
}

// onEveryPath runs f as a subtest for each path that paths returns, each with a new pipe.
func onEveryPath(t *testing.T, f func(t *testing.T, client, server *pipe.Pipe)) {
	onPaths(t, paths(), f)
}

// pathsOf returns those of the paths under test that use the given dialect.
func pathsOf(dialect pipe.Dialect) []path {
	return slices.DeleteFunc(paths(), func(p path) bool { return p.dialect != dialect })
}

func onPaths(t *testing.T, paths []path, f func(t *testing.T, client, server *pipe.Pipe)) {
	for _, path := range paths {
		t.Run(path.name, func(t *testing.T) {
			client, server := connect(t, path)
			f(t, client, server)
		})
	}
}

// connect opens a pipe over the path p between two new contexts, with options changed by adjust,
// and returns both ends. The contexts are closed at the end of the test. It skips the test if the
// path does not work on this machine.
func connect(t testing.TB, p path, adjust ...func(*pipe.Options)) (client, server *pipe.Pipe) {
	t.Helper()
	a, b := newContext(t, p, adjust...), newContext(t, p, adjust...)
	return connectContexts(t, a, b, p.url)
}

func newContext(t testing.TB, p path, adjust ...func(*pipe.Options)) *pipe.Context {
	t.Helper()
	if p.refused != nil {
		t.Skip(p.refused)
	}
	o := p.opts()
	longTimeouts(&o)
	for _, f := range adjust {
		f(&o)
	}
	c, err := pipe.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// longTimeouts sets long timeouts in o, for tests in real time: on a busy machine the default ones
// would end operations that are only slow.
func longTimeouts(o *pipe.Options) {
	o.HandshakeTimeout, o.CloseTimeout = testwait.Limit, testwait.Limit
}

// defaultTimeouts resets the timeouts in o to the defaults of the package.
func defaultTimeouts(o *pipe.Options) { o.HandshakeTimeout, o.CloseTimeout = 0, 0 }

func connectContexts(t testing.TB, a, b *pipe.Context, url string) (client, server *pipe.Pipe) {
	t.Helper()
	_, client, server = connectAndKeep(t, a, b, url)
	return client, server
}

// connectAndKeep makes b listen at url and a dial it, and returns the listener and both ends of the
// pipe. The contexts close them.
func connectAndKeep(t testing.TB, a, b *pipe.Context, url string) (l *pipe.Listener, client, server *pipe.Pipe) {
	t.Helper()
	ctx := testContext(t)
	l, err := b.Listen(ctx, url)
	require.NoError(t, err)
	client, err = a.Dial(ctx, l.URLs()[0])
	require.NoError(t, err)
	server, err = l.Accept(ctx)
	require.NoError(t, err)
	return l, client, server
}

// testContext returns a context that ends after a minute or with the test, so that a call that
// hangs fails.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// message returns a message with payloads and tensors of the given sizes. Its bytes and metadata
// depend on seed, so that two calls with equal arguments return equal messages. targets has the
// target devices of the tensors; a missing or zero one leaves the choice to the receiver.
func message(seed int, payloads []int, tensors []int, targets ...device.Device) *pipe.Message {
	m := &pipe.Message{Metadata: fmt.Appendf(nil, "metadata %d", seed)}
	for i, n := range payloads {
		m.Payloads = append(m.Payloads, pipe.Payload{
			Data:     pattern(n, seed+i),
			Metadata: fmt.Appendf(nil, "payload %d of %d", i, seed),
		})
	}
	for i, n := range tensors {
		tensor := pipe.Tensor{
			Buffer:   device.Bytes(pattern(n, 1000+seed+i)),
			Metadata: fmt.Appendf(nil, "tensor %d of %d", i, seed),
		}
		if i < len(targets) {
			tensor.TargetDevice = targets[i]
		}
		m.Tensors = append(m.Tensors, tensor)
	}
	return m
}

// pattern returns n new bytes that depend on seed. They repeat after a number of bytes that is no
// multiple of a chunk. The race detector need not see the writes to new memory, which it makes slow.
//
//go:norace
func pattern(n, seed int) []byte {
	const period = 65_521
	p := make([]byte, n)
	for i := range min(n, period) {
		p[i] = byte(i*7 + i>>8 + seed*31)
	}
	for have := period; have < n; have *= 2 {
		copy(p[have:], p[:have])
	}
	return p
}

// receive waits for the next message of p, reads it into newly allocated memory, and returns its
// descriptor and that memory.
func receive(t testing.TB, p *pipe.Pipe) (*pipe.Descriptor, pipe.Allocation) {
	t.Helper()
	in, err := p.Next(testContext(t))
	require.NoError(t, err)
	return in.Descriptor(), read(t, in)
}

func read(t testing.TB, in *pipe.Incoming) pipe.Allocation {
	t.Helper()
	a := pipe.NewAllocation(in.Descriptor())
	require.NoError(t, in.Read(testContext(t), a))
	return a
}

// expect receives the next message of p and requires that it equals m.
func expect(t testing.TB, p *pipe.Pipe, m *pipe.Message) {
	t.Helper()
	d, a := receive(t, p)
	same(t, m, d, a)
}

// same requires that the received message with descriptor d, which was read into a, equals m, which
// was sent.
func same(t testing.TB, m *pipe.Message, d *pipe.Descriptor, a pipe.Allocation) {
	t.Helper()
	require.Equal(t, string(m.Metadata), string(d.Metadata))
	require.Len(t, d.Payloads, len(m.Payloads))
	for i, p := range m.Payloads {
		require.Equal(t, len(p.Data), d.Payloads[i].Length)
		require.Equal(t, string(p.Metadata), string(d.Payloads[i].Metadata))
		require.True(t, bytes.Equal(p.Data, a.Payloads[i]), "payload %d differs", i)
	}
	require.Len(t, d.Tensors, len(m.Tensors))
	for i, tensor := range m.Tensors {
		require.Equal(t, tensor.Buffer.Len(), d.Tensors[i].Length)
		require.Equal(t, tensor.Buffer.Device(), d.Tensors[i].SourceDevice)
		require.Equal(t, tensor.TargetDevice, d.Tensors[i].TargetDevice)
		require.Equal(t, string(tensor.Metadata), string(d.Tensors[i].Metadata))
		want, _ := tensor.Buffer.Contiguous()
		got, ok := a.Tensors[i].Contiguous()
		require.True(t, ok)
		require.True(t, bytes.Equal(want, got), "tensor %d differs", i)
	}
}

// write writes m to p, waits until its memory may be reused, and requires that Write succeeds.
func write(t testing.TB, p *pipe.Pipe, m *pipe.Message) {
	t.Helper()
	require.NoError(t, p.Write(testContext(t), m))
}

// exchange sends all messages from client to server, and then all from server to client. In each
// direction it starts all writes before the other end reads any message, and requires that the
// messages arrive in order and unchanged.
func exchange(t *testing.T, client, server *pipe.Pipe, messages ...*pipe.Message) {
	for _, ends := range [][2]*pipe.Pipe{{client, server}, {server, client}} {
		var ops []*pipe.WriteOp
		for _, m := range messages {
			ops = append(ops, ends[0].WriteAsync(testContext(t), m))
		}
		for _, m := range messages {
			expect(t, ends[1], m)
		}
		for _, op := range ops {
			require.NoError(t, op.Wait(testContext(t)))
		}
	}
}
