package bench

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

var errBroken = errors.New("it is broken")

type brokenTransport struct{ transport.Transport }

func (brokenTransport) Viable() error { return errBroken }

type brokenChannel struct{ channel.Factory }

func (brokenChannel) Viable() error { return errBroken }

// withBroken is a Catalog: it returns the default transports and channels, and a transport "pigeon"
// and a channel "smoke" that never work.
func withBroken(tune Tuning) tensorpipe.Profile {
	p := defaultCatalog(tune)
	p.Transports = append(p.Transports, pipe.TransportEntry{Name: "pigeon", Transport: brokenTransport{}})
	p.Channels = append(p.Channels, pipe.ChannelEntry{Name: "smoke", Factory: brokenChannel{}})
	return p
}

// TestUnviablePath tests that Measure fails with ErrPath and the reason if the named transport or
// channel does not work here, and that a Spec without names omits them.
func TestUnviablePath(t *testing.T) {
	g := Go{Child: child(t), Catalog: withBroken}
	for want, spoil := range map[string]func(*Spec){
		"transport pigeon: it is broken": func(s *Spec) { s.Transports = []string{"pigeon"} },
		"channel smoke: it is broken":    func(s *Spec) { s.Channels = []string{"smoke"} },
	} {
		s := small(8, true)
		spoil(&s)
		_, err := g.Measure(t.Context(), s)
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, ErrPath)
		require.ErrorIs(t, err, errBroken)
	}
	// By default they are left out.
	p, err := Catalog(withBroken).profile(Spec{})
	require.NoError(t, err)
	require.Equal(t, transportNames(tensorpipe.DefaultProfile()), transportNames(p))
}

func transportNames(p tensorpipe.Profile) (names []string) {
	for _, e := range p.Transports {
		names = append(names, e.Name)
	}
	return names
}

func TestPathWithoutChannel(t *testing.T) {
	s := Spec{Channels: []string{"cma"}}
	plan := &pipe.Plan{Refused: []pipe.Refusal{{Kind: "transport", Name: "shm", Reason: "far"}, {Kind: "channel", Name: "cma", Reason: "forbidden"}}}
	require.EqualError(t, checkPath(s, plan, nil), "channel cma: cma: forbidden")
	require.ErrorIs(t, checkPath(s, plan, nil), ErrPath)
	require.EqualError(t, checkPath(s, &pipe.Plan{}, nil), "channel cma: no channel between cpu:0 and cpu:0")
	plan.Channels = []pipe.PlannedChannel{{Local: device.CPU(), Remote: device.CPU(), Channel: "cma"}}
	require.NoError(t, checkPath(s, plan, nil))
}

// TestPathThatOneEndLacks tests that Measure fails with an error that names the channel if only the
// client's catalog has it.
func TestPathThatOneEndLacks(t *testing.T) {
	s := small(8, true)
	s.Channels = []string{"smoke"}
	g := Go{Child: child(t), Catalog: func(tune Tuning) tensorpipe.Profile {
		p := defaultCatalog(tune)
		p.Channels[0].Name = "smoke" // unknown to the child
		return p
	}}
	_, err := g.Measure(t.Context(), s)
	require.ErrorContains(t, err, `there is no channel "smoke"`)
}

// TestRoute tests that the routes of a result are those that the tensors took, which may differ
// from the plan of the pipe, by dialect and size.
func TestRoute(t *testing.T) {
	for _, c := range []struct {
		dialect pipe.Dialect
		size    int
		want    string
	}{
		{pipe.DialectNative, 0, ""}, {pipe.DialectNative, 8, Inline}, {pipe.DialectNative, 200_000, "basic"},
		{pipe.DialectCompatible, 8, "basic"},
	} {
		s := small(c.size, true)
		s.Dialect, s.NoEager = c.dialect, true // otherwise round trips are inline
		r, err := Go{Child: child(t)}.Measure(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, []string{c.want, c.want}, []string{r.TripRoute, r.OneWayRoute}, "%s, %d bytes", c.dialect, c.size)
	}
}

// TestRouteBelowLaneSize tests that with the channel mpt_uv the route of tensors too small for
// lanes is the bulk connection, another channel or the message itself, and that of larger ones
// mpt_uv.
func TestRouteBelowLaneSize(t *testing.T) {
	for _, c := range []struct {
		dialect  pipe.Dialect
		channels []string
		size     int
		want     string
	}{
		{pipe.DialectNative, []string{"mpt_uv"}, 200_000, Bulk}, {pipe.DialectNative, []string{"mpt_uv"}, 1 << 20, "mpt_uv"},
		{pipe.DialectNative, []string{"mpt_uv", "basic"}, 200_000, "basic"}, {pipe.DialectNative, []string{"mpt_uv", "basic"}, 1 << 20, "mpt_uv"},
		{pipe.DialectNative, []string{"mpt_uv"}, 8, Inline}, {pipe.DialectCompatible, []string{"mpt_uv", "basic"}, 8, "mpt_uv"},
	} {
		s := small(c.size, true)
		s.NoEager = true // likewise
		s.Dialect, s.Channels, s.OneWay = c.dialect, c.channels, 20
		r, err := Go{Child: child(t)}.Measure(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, []string{"mpt_uv", c.want, c.want}, []string{r.Channel, r.TripRoute, r.OneWayRoute}, "%+v", c)
	}
	r := &Result{Dialect: pipe.DialectNative, SizeBytes: 1 << 20, TripRoute: "inline,mpt_uv", OneWayRoute: "mpt_uv"}
	r.replaceLanesWithBulk()
	require.Equal(t, []string{"inline,bulk", "bulk"}, []string{r.TripRoute, r.OneWayRoute}, "a pipe without lanes")
}

// TestRouteOfAnswers tests that round trips show the inline answers, also if the receiver chooses the device.
func TestRouteOfAnswers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere callers do not read the socket, and answers are not inline")
	}
	for _, named := range []bool{true, false} {
		r, err := Go{Child: child(t)}.Measure(t.Context(), small(200_000, named))
		require.NoError(t, err)
		require.Contains(t, r.TripRoute, Inline)
		require.Contains(t, r.OneWayRoute, "basic")
	}
}

// TestRouteOfAPhase tests that route counts only tensors that were sent or received between the two
// snapshots.
func TestRouteOfAPhase(t *testing.T) {
	stats := func(basicSent, basicReceived, cmaSent uint64) pipe.PipeStats {
		return pipe.PipeStats{Channels: []pipe.ChannelStats{
			{Name: "basic", Sent: pipe.Traffic{Messages: basicSent}, Received: pipe.Traffic{Messages: basicReceived}},
			{Name: "cma", Sent: pipe.Traffic{Messages: cmaSent}},
		}}
	}
	before := stats(7, 5, 3)
	for _, c := range []struct {
		after   pipe.PipeStats
		tensors int
		want    string
	}{
		{before, 0, ""},
		{before, 9, Inline},
		{stats(8, 5, 3), 1, "basic"},
		{stats(7, 6, 3), 2, "basic,inline"},
		{stats(7, 5, 12), 9, "cma"},
		{stats(8, 6, 13), 13, "basic,cma,inline"},
	} {
		require.Equal(t, c.want, route(before, c.after, c.tensors))
	}
}

func TestMeasureOnAllBuffers(t *testing.T) {
	for _, buffers := range AllBuffers() {
		s := small(3<<20, true)
		s.Buffers, s.RoundTrips, s.OneWay = buffers, 5, 9
		r, err := Go{Child: child(t)}.Measure(t.Context(), s)
		require.NoError(t, err)
		requireSane(t, s, r)
		require.Equal(t, buffers, r.Buffers)
	}
}

// TestMeasureLibtensorpipePaths tests that Libtensorpipe measures each of its transports with each
// of its channels and both kinds of memory, and reports that path. Paths that do not work here are
// skipped.
func TestMeasureLibtensorpipePaths(t *testing.T) {
	requirePeer(t)
	for _, transport := range []string{"uv", "shm"} {
		for _, channel := range []string{"basic", "mpt_uv", "cma"} {
			for _, buffers := range []string{BuffersDefault, BuffersHuge} {
				t.Run(transport+"/"+channel+"/"+buffers, func(t *testing.T) {
					s := small(200_000, false)
					s.Transports, s.Channels, s.Lanes, s.Buffers = []string{transport}, []string{channel}, 2, buffers
					r, err := Libtensorpipe{}.Measure(t.Context(), s)
					if errors.Is(err, ErrPath) {
						t.Skip(err)
					}
					require.NoError(t, err)
					require.Equal(t, []string{transport, channel, channel, channel}, []string{r.Transport, r.Channel, r.TripRoute, r.OneWayRoute})
					require.Positive(t, r.GBps)
				})
			}
		}
	}
}

// TestPathOfThePeer tests that Libtensorpipe uses PeerTransport and PeerChannel of a Spec where
// these are set, and that Check rejects paths that it does not have.
func TestPathOfThePeer(t *testing.T) {
	s := small(8, true)
	require.Equal(t, s, s.ForPeer())
	s.Transports, s.Channels = nil, nil
	require.ErrorContains(t, Libtensorpipe{}.Check(s), "exactly one transport and one channel")
	s.PeerTransport, s.PeerChannel = "shm", "basic"
	require.NoError(t, Libtensorpipe{}.Check(s))
	require.Equal(t, []string{"shm", "basic"}, append(s.ForPeer().Transports, s.ForPeer().Channels...))

	for want, spoil := range map[string]func(*Spec){
		`no transport "mem"`: func(s *Spec) { s.PeerTransport = "mem" },
		`no channel "xth"`:   func(s *Spec) { s.PeerChannel = "xth" },
	} {
		s := s
		spoil(&s)
		require.ErrorIs(t, Libtensorpipe{}.Check(s), ErrSpec)
		require.ErrorContains(t, Libtensorpipe{}.Check(s), want)
	}
}

// TestConnectionsOfResult tests that Result.Connections is the number of lanes if the path has
// lanes, and otherwise 0.
func TestConnectionsOfResult(t *testing.T) {
	for _, c := range []struct {
		dialect            pipe.Dialect
		transport, channel string
		lanes, want        int
	}{
		{pipe.DialectNative, "uv", "mpt_uv", 3, 3}, {pipe.DialectCompatible, "shm", "mpt_uv", 3, 3},
		{pipe.DialectNative, "shm", "mpt_uv", 3, 0}, {pipe.DialectNative, "uv", "basic", 3, 0},
		{pipe.DialectCompatible, "uv", "mpt_uv", 16, 16},
		{pipe.DialectNative, "uv", "mpt_uv", 16, max(4, min(8, runtime.GOMAXPROCS(0)))},
	} {
		plan := &pipe.Plan{
			Dialect: c.dialect, Transport: c.transport,
			Channels: []pipe.PlannedChannel{{Local: device.CPU(), Remote: device.CPU(), Channel: c.channel}},
		}
		require.Equal(t, c.want, newResult("test", Spec{Lanes: c.lanes}, plan, Samples{}).Connections, "%+v", c)
	}
}
