package pipe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/loglines"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// forEachEnd runs f with an option of the client, of the server, and of both.
func forEachEnd(t *testing.T, option func(*pipe.Options), f func(t *testing.T, dials, listens func(*pipe.Options))) {
	none := func(*pipe.Options) {}
	t.Run("the client", func(t *testing.T) { f(t, option, none) })
	t.Run("the server", func(t *testing.T) { f(t, none, option) })
	t.Run("both ends", func(t *testing.T) { f(t, option, option) })
}

// twoChannels sets the dialect and two channels.
func twoChannels(dialect pipe.Dialect) func(*pipe.Options) {
	return func(o *pipe.Options) {
		o.Dialect = dialect
		o.Channels = []pipe.ChannelEntry{
			{Name: "xth", Priority: 2, Factory: xth.New()},
			{Name: "basic", Priority: 1, Factory: basic.New()},
		}
	}
}

// onBoth runs f in each dialect with pairs of contexts that have both transports.
func onBoth(t *testing.T, option func(*pipe.Options), f func(t *testing.T, a, b *pipe.Context)) {
	for _, dialect := range dialects() {
		t.Run(string(dialect), func(t *testing.T) {
			forEachEnd(t, option, func(t *testing.T, dials, listens func(*pipe.Options)) {
				network := mem.NewNetwork()
				f(t, both(t, network, twoChannels(dialect), dials), both(t, network, twoChannels(dialect), listens))
			})
		})
	}
}

// listen listens on both transports.
func listen(t *testing.T, c *pipe.Context) *pipe.Listener {
	t.Helper()
	l, err := c.Listen(testContext(t), "uv://127.0.0.1:0", "mem://")
	require.NoError(t, err)
	return l
}

// requirePath requires that the plans of both ends have this path, and that the pipe
// works.
func requirePath(t *testing.T, client, server *pipe.Pipe, transportName, channelName string) {
	t.Helper()
	for _, p := range []*pipe.Pipe{client, server} {
		require.Equal(t, transportName, p.Plan().Transport)
		got, _ := p.Plan().Channel(device.CPU(), device.CPU())
		require.Equal(t, channelName, got)
	}
	exchange(t, client, server, message(1, []int{10}, []int{200_000}, device.CPU()))
}

// A required path is taken, whichever end has the policy, whatever the priorities are and
// over whichever transport the handshake begins.
func TestRequiredPathIsTaken(t *testing.T) {
	option := func(o *pipe.Options) {
		o.Policy.Transports.Require = []string{"uv"}
		o.Policy.Channels.Require = []string{"basic"}
	}
	onBoth(t, option, func(t *testing.T, a, b *pipe.Context) {
		l := listen(t, b)
		for _, url := range l.URLs() {
			client, err := a.Dial(testContext(t), url)
			require.NoError(t, err)
			server, err := l.Accept(testContext(t))
			require.NoError(t, err)
			requirePath(t, client, server, "uv", "basic")
			for _, p := range []*pipe.Pipe{client, server} {
				require.Regexp(t, "not transport mem .*the policy requires uv", p.Plan().String())
				require.Regexp(t, "not channel xth .*the policy requires basic", p.Plan().String())
			}
		}
	})
}

// A preference of either end goes before the priorities.
func TestPreferredPathIsTaken(t *testing.T) {
	option := func(o *pipe.Options) {
		o.Policy.Transports.Prefer = []string{"uv"}
		o.Policy.Channels.Prefer = []string{"basic"}
	}
	onBoth(t, option, func(t *testing.T, a, b *pipe.Context) {
		client, server := join(t, a, listen(t, b))
		requirePath(t, client, server, "uv", "basic")
	})
}

// If both ends have a preference the server's counts, separately for transports and
// channels.
func TestServerPreferenceGoesFirst(t *testing.T) {
	network := mem.NewNetwork()
	prefer := func(transports, channels []string) func(*pipe.Options) {
		return func(o *pipe.Options) {
			o.Policy.Transports.Prefer, o.Policy.Channels.Prefer = transports, channels
		}
	}
	auto := twoChannels(pipe.DialectAuto)
	a := both(t, network, auto, prefer([]string{"uv"}, []string{"basic"}))
	client, server := join(t, a, listen(t, both(t, network, auto, prefer([]string{"mem"}, nil))))
	requirePath(t, client, server, "mem", "basic")
	client, server = join(t, a, listen(t, both(t, network, auto, prefer(nil, []string{"xth"}))))
	requirePath(t, client, server, "uv", "xth")
}

// If no path is left the pipe is not opened. The error of the client and the log of the
// server have the reason, whichever end has the policy.
func TestUnmetPolicyFailsHandshake(t *testing.T) {
	for name, c := range map[string]struct {
		option func(*pipe.Options)
		lacks  func(*pipe.Options)
		reason string
	}{
		"transport": {
			func(o *pipe.Options) { o.Policy.Transports.Require = []string{"mem"} },
			func(o *pipe.Options) { o.Policy.Transports.Forbid = []string{"mem"} },
			"transport mem: ",
		},
		"channel": {
			func(o *pipe.Options) { o.Policy.Channels.Require = []string{"xth"} },
			func(o *pipe.Options) { o.Policy.Channels.Forbid = []string{"xth"} },
			"channel xth: ",
		},
	} {
		for _, dialect := range dialects() {
			t.Run(name+" "+string(dialect), func(t *testing.T) {
				t.Run("the client", func(t *testing.T) { requireRejectedDial(t, dialect, c.option, c.lacks, c.reason) })
				t.Run("the server", func(t *testing.T) { requireRejectedDial(t, dialect, c.lacks, c.option, c.reason) })
			})
		}
	}
}

func requireRejectedDial(t *testing.T, dialect pipe.Dialect, dials, listens func(*pipe.Options), reason string) {
	var log loglines.Lines
	network := mem.NewNetwork()
	a := both(t, network, twoChannels(dialect), dials)
	b := both(t, network, twoChannels(dialect), listens, func(o *pipe.Options) { o.Logger = log.Logger() })
	l, err := b.Listen(testContext(t), "uv://127.0.0.1:0")
	require.NoError(t, err)
	_, err = a.Dial(testContext(t), l.URLs()[0])
	require.ErrorIs(t, err, pipe.ErrHandshake)
	require.ErrorIs(t, err, pipe.ErrPolicy)
	require.ErrorContains(t, err, reason)
	require.ErrorContains(t, err, "the server rejects the pipe")
	require.EqualValues(t, 1, b.Stats().HandshakesFailed)
	require.Contains(t, log.String(), reason)
	require.NotContains(t, log.String(), pipe.ErrPeerClosed.Error())
}

// A policy that this end alone cannot meet fails before dialling.
func TestUnsatisfiablePolicy(t *testing.T) {
	a := both(t, mem.NewNetwork(), func(o *pipe.Options) {
		o.Policy.Transports = pipe.Rule{Require: []string{"mem"}, Forbid: []string{"mem"}}
	})
	_, err := a.Dial(testContext(t), "uv://127.0.0.1:1")
	require.ErrorIs(t, err, pipe.ErrPolicy)
	require.ErrorContains(t, err, "transport mem: forbidden by the policy")
}

func TestForbiddenTransportIsNotDialled(t *testing.T) {
	a := both(t, mem.NewNetwork(), func(o *pipe.Options) { o.Policy.Transports.Forbid = []string{"uv"} })
	_, err := a.Dial(testContext(t), "uv://127.0.0.1:1")
	require.ErrorContains(t, err, "forbidden by the policy")
	require.Equal(t, "uv", a.Refused()[0].Name)
}

// A client that does not support the dialect that the server requires receives that
// reason.
func TestClientReceivesDialectRejection(t *testing.T) {
	network := mem.NewNetwork()
	a := both(t, network, func(o *pipe.Options) { o.Dialect = pipe.DialectCompatible })
	b := both(t, network, func(o *pipe.Options) { o.Dialect = pipe.DialectNative })
	_, err := a.Dial(testContext(t), listen(t, b).URLs()[0])
	require.ErrorIs(t, err, pipe.ErrDialect)
	require.ErrorContains(t, err, "the server rejects the pipe")
}
