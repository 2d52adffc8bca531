package pipe_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/channel/xth"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/loglines"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// forEachEnd runs f three times, as subtests: with option for the client, for the server, and for
// both. The end without it gets a function that changes nothing.
func forEachEnd(t *testing.T, option func(*pipe.Options), f func(t *testing.T, dials, listens func(*pipe.Options))) {
	none := func(*pipe.Options) {}
	t.Run("the client", func(t *testing.T) { f(t, option, none) })
	t.Run("the server", func(t *testing.T) { f(t, none, option) })
	t.Run("both ends", func(t *testing.T) { f(t, option, option) })
}

// twoChannels returns a function that sets Options.Dialect and the channels xth and basic, of which
// xth has the higher priority.
func twoChannels(dialect pipe.Dialect) func(*pipe.Options) {
	return func(o *pipe.Options) {
		o.Dialect = dialect
		o.Channels = []pipe.ChannelEntry{
			{Name: "xth", Priority: 2, Factory: xth.New()},
			{Name: "basic", Priority: 1, Factory: basic.New()},
		}
	}
}

// onBoth runs f as a subtest in each dialect, with option at the client, at the server and at both.
// a and b are the contexts of client and server; both have the transports uv and mem and the
// channels xth and basic.
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

// listen returns a listener of c at free addresses of both uv and mem.
func listen(t *testing.T, c *pipe.Context) *pipe.Listener {
	t.Helper()
	l, err := c.Listen(testContext(t), "uv://127.0.0.1:0", "mem://")
	require.NoError(t, err)
	return l
}

// requirePath requires that the plans of both ends have this transport and this channel between
// host memory, and that a message passes through the pipe in both directions.
func requirePath(t *testing.T, client, server *pipe.Pipe, transportName, channelName string) {
	t.Helper()
	for _, p := range []*pipe.Pipe{client, server} {
		require.Equal(t, transportName, p.Plan().Transport)
		got, _ := p.Plan().Channel(device.CPU(), device.CPU())
		require.Equal(t, channelName, got)
	}
	exchange(t, client, server, message(1, []int{10}, []int{200_000}, device.CPU()))
}

// TestRequiredPathIsTaken checks that a required path is taken, whichever end has the policy,
// whatever the priorities are and over whichever transport the handshake begins.
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

// TestPreferredPathIsTaken checks that a transport and a channel that either end prefers are used,
// even if others have a higher priority.
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

// TestServerPreferenceGoesFirst checks that if both ends prefer different transports, or different
// channels, the server's preference counts. Where the server has no preference for transports or
// for channels, the client's counts.
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

// TestUnmetPolicyFailsHandshake checks that if one end requires a transport or a channel that the
// other end forbids, Dial fails. Its error and the log of the server have the reason, whichever end
// has the requirement.
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

// TestUnsatisfiablePolicy checks that Dial fails with ErrPolicy and the reason, without a
// connection, if the client's own policy excludes each transport that it requires.
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

// TestClientReceivesDialectRejection checks that if the server requires a dialect that the client
// does not support, Dial fails with ErrDialect and the text of the server's rejection.
func TestClientReceivesDialectRejection(t *testing.T) {
	network := mem.NewNetwork()
	a := both(t, network, func(o *pipe.Options) { o.Dialect = pipe.DialectCompatible })
	b := both(t, network, func(o *pipe.Options) { o.Dialect = pipe.DialectNative })
	_, err := a.Dial(testContext(t), listen(t, b).URLs()[0])
	require.ErrorIs(t, err, pipe.ErrDialect)
	require.ErrorContains(t, err, "the server rejects the pipe")
}

// TestUnknownNamesInAPolicy checks that New fails if the policy requires a name that no entry has,
// also beside a known one, and logs a warning if the policy prefers or forbids such a name.
func TestUnknownNamesInAPolicy(t *testing.T) {
	options := func(p pipe.Policy, log *loglines.Lines) pipe.Options {
		return pipe.Options{
			Transports: []pipe.TransportEntry{{Name: "mem", Transport: mem.New(mem.NewNetwork())}},
			Channels:   []pipe.ChannelEntry{{Name: "basic", Factory: basic.New()}},
			Policy:     p, Logger: log.Logger(),
		}
	}
	for want, policy := range map[string]pipe.Policy{
		`bad options: Policy.Channels.Require: no channel "cmaa" (registered: basic)`:  {Channels: pipe.Rule{Require: []string{"basic", "cmaa"}}},
		`bad options: Policy.Transports.Require: no transport "shm" (registered: mem)`: {Transports: pipe.Rule{Require: []string{"shm"}}},
	} {
		var log loglines.Lines
		_, err := pipe.New(options(policy, &log))
		require.ErrorIs(t, err, pipe.ErrOptions)
		require.EqualError(t, err, want)
	}
	var log loglines.Lines
	c, err := pipe.New(options(pipe.Policy{
		Transports: pipe.Rule{Prefer: []string{"mem"}, Forbid: []string{"smh"}},
		Channels:   pipe.Rule{Require: []string{"basic"}, Prefer: []string{"basic", "fast"}},
	}, &log))
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), `level=WARN msg="unknown name in the policy" field=Policy.Transports.Forbid name=smh registered=mem`)
	require.Contains(t, log.String(), `level=WARN msg="unknown name in the policy" field=Policy.Channels.Prefer name=fast registered=basic`)
}
