package interop

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
	"github.com/tensorpipe-go/tensorpipe/channel/mpt"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/shm"
	"github.com/tensorpipe-go/tensorpipe/uv"
)

// route is the path that a pipe to libtensorpipe should take. Both ends also have uv and basic, so
// that a pipe that cannot take the path still opens, and its plan shows why.
type route struct {
	transport, channel string
	lanes              int // of the channel mpt_uv
}

var plain = route{transport: "uv", channel: "basic"}

// flags returns the command line flags that give tppeer the same transports and channels as options
// gives the Go context.
func (r route) flags() []string {
	out := []string{"--transport", withFallback("uv", r.transport), "--channel", withFallback("basic", r.channel)}
	if r.lanes > 0 {
		out = append(out, "--lanes", strconv.Itoa(r.lanes))
	}
	return out
}

func withFallback(fallback, name string) string {
	if name == fallback {
		return name
	}
	return fallback + "," + name
}

// options returns the options of a Go context with the transport and the channel of r, and with uv
// and basic, at the priorities that PyTorch uses.
func (r route) options() pipe.Options {
	o := pipe.Options{
		Name:       "go",
		Transports: []pipe.TransportEntry{{Name: "uv", Priority: 0, Transport: uv.New()}},
		Channels:   []pipe.ChannelEntry{{Name: "basic", Priority: 1000, Factory: basic.New()}},
	}
	if r.transport == "shm" {
		o.Transports = append(o.Transports, pipe.TransportEntry{Name: "shm", Priority: 200, Transport: shm.New()})
	}
	switch r.channel {
	case "mpt_uv":
		lanes := mpt.Lanes{Count: r.lanes, Transport: uv.New()}
		o.Channels = append(o.Channels, pipe.ChannelEntry{Name: "mpt_uv", Priority: 1100, Factory: mpt.New(lanes)})
	case "cma":
		o.Channels = append(o.Channels, pipe.ChannelEntry{Name: "cma", Priority: 1200, Factory: cma.New(cma.Options{})})
	}
	return o
}

// requireViable skips the test if a transport or a channel of r does not work on this machine.
func (r route) requireViable(t *testing.T) {
	t.Helper()
	o := r.options()
	for _, e := range o.Transports {
		skipWithout(t, e.Name, e.Transport.Viable())
	}
	for _, e := range o.Channels {
		skipWithout(t, e.Name, e.Factory.Viable())
	}
}

func skipWithout(t *testing.T, name string, err error) {
	t.Helper()
	if err != nil {
		t.Skipf("%s does not work on this machine: %v", name, err)
	}
}

func (r route) context(t *testing.T) *pipe.Context {
	c, err := pipe.New(r.options())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// urls returns the URLs to listen on: that of uv, and that of the transport of r if it is another
// one.
func (r route) urls() []string {
	if r.transport == "uv" {
		return []string{"uv://127.0.0.1:0"}
	}
	return []string{"uv://127.0.0.1:0", r.transport + "://"}
}

// urlOf returns the first of urls that is of the given transport, and fails the test if there is
// none.
func urlOf(t *testing.T, transport string, urls []string) string {
	t.Helper()
	at := slices.IndexFunc(urls, func(u string) bool { return strings.HasPrefix(u, transport+"://") })
	require.NotEqual(t, -1, at, urls)
	return urls[at]
}

// start starts a tppeer with the given role, which listens with the transports and channels of r,
// and returns it.
func (r route) start(t *testing.T, role string) *Peer {
	t.Helper()
	return Start(t, append([]string{role, "--listen", strings.Join(r.urls(), ",")}, r.flags()...)...)
}

// startTo starts a tppeer with the given role, which dials the uv address of l with the transports
// and channels of r and the further flags, and returns it.
func (r route) startTo(t *testing.T, l *pipe.Listener, role string, flags ...string) *Peer {
	t.Helper()
	args := append([]string{role, "--to", urlOf(t, "uv", l.URLs())}, r.flags()...)
	return Start(t, append(args, flags...)...)
}

func (r route) dial(t *testing.T, peer *Peer) *pipe.Pipe {
	t.Helper()
	p, err := r.context(t).Dial(testContext(t), urlOf(t, "uv", strings.Fields(peer.URL())))
	require.NoError(t, err)
	r.requireRoute(t, p)
	return p
}

func (r route) listen(t *testing.T) *pipe.Listener {
	t.Helper()
	l, err := r.context(t).Listen(testContext(t), r.urls()...)
	require.NoError(t, err)
	return l
}

func (r route) accept(t *testing.T, l *pipe.Listener) *pipe.Pipe {
	t.Helper()
	p, err := l.Accept(testContext(t))
	require.NoError(t, err)
	r.requireRoute(t, p)
	return p
}

// requireRoute fails the test unless the plan of p has the transport and the channel of r.
func (r route) requireRoute(t *testing.T, p *pipe.Pipe) {
	t.Helper()
	r.requirePlan(t, p.Plan())
}

func (r route) requirePlan(t *testing.T, plan *pipe.Plan) {
	t.Helper()
	require.Equal(t, pipe.DialectCompatible, plan.Dialect)
	require.Equal(t, r.transport, plan.Transport, plan)
	name, ok := plan.Channel(device.CPU(), device.CPU())
	require.True(t, ok, plan)
	require.Equal(t, r.channel, name, plan)
}

// sent returns the traffic that s has sent, for requireCarried; received returns the traffic that s
// has received.
func sent(s pipe.ChannelStats) pipe.Traffic     { return s.Sent }
func received(s pipe.ChannelStats) pipe.Traffic { return s.Received }

// requireCarried fails the test unless the channel of r has moved all tensors of b that are not
// empty, and other channels none, in each of directions.
func (r route) requireCarried(t *testing.T, p *pipe.Pipe, b *batch, directions ...func(pipe.ChannelStats) pipe.Traffic) {
	t.Helper()
	var all pipe.Traffic
	for _, m := range b.messages {
		for _, tensor := range m.Tensors {
			if n := len(tensor.Data); n > 0 {
				all.Messages++
				all.Bytes += uint64(n)
			}
		}
	}
	channels := p.Stats().Channels
	require.True(t, slices.ContainsFunc(channels, func(c pipe.ChannelStats) bool { return c.Name == r.channel }))
	for _, c := range channels {
		want := all
		if c.Name != r.channel {
			want = pipe.Traffic{}
		}
		for _, way := range directions {
			require.Equal(t, want, way(c), c.Name)
		}
	}
}
