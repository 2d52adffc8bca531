package cudaipc

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// channelTransports are the transports on which the channels are tested.
var channelTransports = []struct {
	name string
	mk   func() transport.Transport
	addr string
}{
	{"mem", func() transport.Transport { return mem.New(nil) }, ""},
	{"uv", func() transport.Transport { return uv.New() }, "127.0.0.1:0"},
}

// overXTH ends the name of a channel whose host channel is xth.
const overXTH = "_over_xth"

// gpuChannels are the channels of the tests. host is set for one that serves cpu:0 too.
var gpuChannels = []struct {
	name    string
	factory func(k *Kind) channel.Factory
	host    bool
}{
	{"cuda_xth", func(k *Kind) channel.Factory { return xth.ForKind("cuda_xth", k) }, false},
	{BasicName, func(k *Kind) channel.Factory { return NewBasic(k, basic.New()) }, true},
	{BasicName + overXTH, func(k *Kind) channel.Factory { return NewBasic(k, xth.New()) }, true},
}

// The channels pass the conformance suite, which contains TensorPipe's tests of a channel. Over another
// host channel the wire form of the compatible dialect is not TensorPipe's.
func TestParityOfChannels(t *testing.T) {
	for _, c := range gpuChannels {
		for _, tr := range race.Pick(channelTransports, channelTransports[:1]) {
			t.Run(c.name+"/"+tr.name, func(t *testing.T) {
				f := newFixture(t, Options{})
				run := channeltest.Run
				if strings.HasSuffix(c.name, overXTH) {
					run = channeltest.RunNative
				}
				run(t, channeltest.Backend{
					Name:    strings.TrimSuffix(c.name, overXTH),
					New:     func(*testing.T) channel.Factory { return c.factory(f.Kind) },
					Connect: channeltest.Over(tr.mk(), tr.addr),
					Kinds:   f.kinds(), Strict: f.strict(),
					Hold:              f.holder(),
					SkipsAborted:      !c.host,
					TrustsCompletions: c.host,
				})
			})
		}
	}
}

// pair is the two ends of a channel.
type pair struct {
	*fixture
	from, to channel.Channel
	broken   chan error // errors of Link.Broken of to
	next     uint64     // id
}

// openPair returns the ends of a new channel of f over package mem. The native dialect needs a host
// channel that does not use Link.Host. The ends are closed at the end of the test.
func openPair(t *testing.T, fix *fixture, f channel.Factory, native bool) *pair {
	t.Helper()
	p := &pair{fixture: fix, broken: make(chan error, 2)}
	near, far := connectedConns(t, f.Connections(native))
	p.from = openEnd(t, f, native, near, channel.RoleConnect, func(error) {})
	p.to = openEnd(t, f, native, far, channel.RoleListen, func(err error) { p.broken <- err })
	return p
}

// connectedConns returns the ends of n connections of package mem.
func connectedConns(t *testing.T, n int) (near, far []transport.Conn) {
	t.Helper()
	connect := channeltest.Over(mem.New(nil), "")
	for range n {
		a, b := connect(t)
		near, far = append(near, a), append(far, b)
	}
	return near, far
}

func openEnd(t *testing.T, f channel.Factory, native bool, conns []transport.Conn, role channel.Role, broken func(error)) channel.Channel {
	t.Helper()
	ch, err := f.New(t.Context(), channel.Link{
		Native: native, Conns: conns, Peer: "peer", Broken: broken, Logger: slog.New(slog.DiscardHandler),
	}, role)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ch.Close(nil)) })
	return ch
}

// start begins to move src to dst, and returns a function that waits for both ends.
func (p *pair) start(t *testing.T, src, dst device.Buffer) (wait func()) {
	t.Helper()
	sent, received := make(chan error, 1), make(chan error, 1)
	p.to.Recv(p.next, dst, func(err error) { received <- err })
	p.from.Send(p.next, src, func(err error) { sent <- err })
	p.next++
	return func() {
		t.Helper()
		require.NoError(t, testwait.Finish(t, received))
		require.NoError(t, testwait.Finish(t, sent))
	}
}

// tensor returns memory on the device with that index, or on the last one if there are fewer, valid on a
// new stream, on which a copy of data into it is enqueued. The index -1 stands for host memory.
func (f *fixture) tensor(index int, data []byte) device.Buffer {
	f.Helper()
	if index < 0 {
		return device.Bytes(bytes.Clone(data))
	}
	b := f.alloc(len(data), f.stream(device.Device{Kind: Name, Index: min(index, len(f.Devices())-1)}))
	const most = 8 << 20 // Copy waits for the device if host memory is much larger
	for at := 0; at < len(data); at += most {
		n := min(most, len(data)-at)
		f.write(b.Slice(at, n), data[at:at+n])
	}
	return b
}

// bytesOf waits for the stream of b and returns its bytes.
func (f *fixture) bytesOf(b device.Buffer) []byte {
	f.Helper()
	if p, ok := b.Contiguous(); ok {
		return p
	}
	return f.read(b)
}

// inDialects runs test for each channel in both dialects.
func inDialects(t *testing.T, test func(t *testing.T, p *pair, host bool)) {
	for _, c := range gpuChannels {
		for _, native := range []bool{false, true} {
			if native && c.name == BasicName {
				continue // needs Link.Host, which the conformance suite has
			}
			t.Run(fmt.Sprintf("%s/native=%v", c.name, native), func(t *testing.T) {
				f := newFixture(t, Options{})
				test(t, openPair(t, f, c.factory(f.Kind), native), c.host)
			})
		}
	}
}
