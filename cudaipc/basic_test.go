package cudaipc

import (
	"runtime"
	"sync/atomic"
	"testing"; "time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/channeltest"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// simulated is a Kind on the simulated driver. At the end of the test it is closed, and the test fails
// if the driver was misused.
type simulated struct {
	*Kind
	control *cusim.Control
}

func newSimulated(t *testing.T) simulated {
	t.Helper()
	lib := cusim.Library(t)
	control, err := cusim.Open(lib)
	require.NoError(t, err)
	d, err := driver.Open(lib)
	require.NoError(t, err)
	k, err := New(d, Options{})
	require.NoError(t, err)
	require.NoError(t, k.Viable())
	misuses := control.Misuse()
	t.Cleanup(func() {
		control.ReleaseAll()
		for _, g := range k.gpus { println("streams", len(g.all), "segments", len(g.memory.segments), "events", len(g.events)) }; at := time.Now(); require.NoError(t, k.Close()); println("close", time.Since(at).String())
		require.Equal(t, misuses, control.Misuse(), control.LastMisuse())
		require.NoError(t, control.Set("CUSIM_DELAY_US", ""))
	})
	return simulated{k, control}
}

// hold holds back the work of s until release is called.
func (s simulated) hold(t *testing.T, stream device.Stream) (release func()) {
	t.Helper()
	handle := uintptr(stream.(*Stream).Handle())
	require.NoError(t, s.control.Hold(handle))
	return func() { _ = s.control.Release(handle) }
}

// collected is a Kind that collects unreachable streams and memory regularly. The conformance suite
// creates a stream for each tensor, and the pacing of the garbage collector does not count them.
type collected struct {
	*Kind
	streams *atomic.Int64
}

func (c collected) NewStream(d device.Device) (device.Stream, error) {
	if c.streams.Add(1)%50 == 0 {
		runtime.GC()
	}
	return c.Kind.NewStream(d)
}

// channelTransports are the transports on which the channels are tested.
var channelTransports = []struct {
	name string
	mk   func() transport.Transport
	addr string
}{
	{"mem", func() transport.Transport { return mem.New(nil) }, ""},
	{"uv", func() transport.Transport { return uv.New() }, "127.0.0.1:0"},
}

// The channels pass the conformance suite, which contains TensorPipe's tests of a channel.
func TestParity(t *testing.T) {
	for _, c := range []struct {
		name     string
		skips    bool
		trusts   bool
		factory  func(k *Kind) channel.Factory
		hostless bool
	}{
		{name: "cuda_xth", skips: true, factory: func(k *Kind) channel.Factory { return xth.ForKind("cuda_xth", k) }},
		{name: BasicName, trusts: true, factory: func(k *Kind) channel.Factory { return NewBasic(k, basic.New()) }},
	} {
		for _, tr := range channelTransports {
			t.Run(c.name+"/"+tr.name, func(t *testing.T) {
				s := newSimulated(t)
				require.NoError(t, s.control.Set("CUSIM_DELAY_US", ""))
				channeltest.Run(t, channeltest.Backend{
					Name:              c.name,
					New:               func(*testing.T) channel.Factory { return c.factory(s.Kind) },
					Connect:           channeltest.Over(tr.mk(), tr.addr),
					Kinds:             []device.Kind{collected{s.Kind, new(atomic.Int64)}},
					Hold:              func(stream device.Stream) func() { return s.hold(t, stream) },
					SkipsAborted:      c.skips,
					TrustsCompletions: c.trusts,
				})
			})
		}
	}
}
