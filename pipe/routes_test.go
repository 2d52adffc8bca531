package pipe

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
)

var (
	cpuOnly = map[device.Device]string{device.CPU(): "any"}
	cpuPair = devicePair{device.CPU(), device.CPU()}
)

func sizedEntry(name string, priority, from int) ChannelEntry {
	return ChannelEntry{
		Name: name, Priority: priority, MinBytes: from,
		Factory: announcedChannel{announced{descriptors: cpuOnly, connections: 1}},
	}
}

// routed returns the routes between cpu:0 and cpu:0 for two ends with these channels: those of the
// server, and those that the client derives from the server's answer. native selects the dialect.
func routed(t require.TestingT, native bool, entries ...ChannelEntry) (server, client route) {
	r, err := newRegistry(nil, entries, Policy{})
	require.NoError(t, err)
	chosen, _ := r.chooseChannels(r.channelDescriptors(), nil)
	all := r.routesOf(chosen, native, func(e ChannelEntry, pair devicePair) bool { return e.serves(pair, cpuOnly) })
	answer := &wire.BrochureAnswer{ChannelDeviceDescriptors: map[string]deviceDescriptors{}}
	for _, e := range r.used(all) {
		answer.ChannelDeviceDescriptors[e.Name] = cpuOnly
	}
	answer.Mark(wire.Marker{MinVersion: wire.VersionNative, MaxVersion: wire.VersionNative})
	answer.AddSizes(r.sizeClasses(all))
	theirs, err := r.acceptRoutes(chosen, answer, native)
	require.NoError(t, err)
	return all[cpuPair], theirs[cpuPair]
}

func TestRoutesBySize(t *testing.T) {
	for name, c := range map[string]struct {
		entries []ChannelEntry
		native  bool
		want    route
	}{
		"one for all":           {[]ChannelEntry{sizedEntry("a", 2, 0), sizedEntry("b", 1, 0)}, true, route{{"a", 0}}},
		"small ones elsewhere":  {[]ChannelEntry{sizedEntry("a", 2, 100), sizedEntry("b", 1, 0)}, true, route{{"a", 100}, {"b", 0}}},
		"three classes":         {[]ChannelEntry{sizedEntry("a", 3, 100), sizedEntry("b", 2, 10), sizedEntry("c", 1, 0)}, true, route{{"a", 100}, {"b", 10}, {"c", 0}}},
		"one is never best":     {[]ChannelEntry{sizedEntry("a", 3, 100), sizedEntry("b", 2, 100), sizedEntry("c", 1, 0)}, true, route{{"a", 100}, {"c", 0}}},
		"the last takes all":    {[]ChannelEntry{sizedEntry("a", 2, 100), sizedEntry("b", 1, 50)}, true, route{{"a", 100}, {"b", 0}}},
		"only channel":          {[]ChannelEntry{sizedEntry("a", 2, 100)}, true, route{{"a", 0}}},
		"the dialect has none":  {[]ChannelEntry{sizedEntry("a", 2, 100), sizedEntry("b", 1, 0)}, false, route{{"a", 0}}},
		"less than none is all": {[]ChannelEntry{sizedEntry("a", 2, -1), sizedEntry("b", 1, 0)}, true, route{{"a", 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			server, client := routed(t, c.native, c.entries...)
			require.Equal(t, c.want, server)
			require.Equal(t, c.want, client)
		})
	}
}

// TestBothEndsHaveSameRoutes checks that server and client have the same routes for any channels
// and MinBytes. A tensor takes the first channel by priority whose MinBytes is not larger than the
// tensor, if there is one.
func TestBothEndsHaveSameRoutes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var entries []ChannelEntry
		least := map[string]int{}
		for i, from := range rapid.SliceOfN(rapid.IntRange(0, 5), 1, 6).Draw(t, "from") {
			name := string(rune('a' + i))
			least[name] = from
			entries = append(entries, sizedEntry(name, -i, from))
		}
		server, client := routed(t, true, entries...)
		require.Equal(t, server, client)

		p := &Pipe{channelsByPair: map[devicePair][]sizedChannel{}, recvDevices: map[device.Device]device.Device{}, sendDevices: map[device.Device]struct{}{}}
		for _, e := range entries {
			p.channels = append(p.channels, &pipeChannel{name: e.Name})
		}
		p.assignChannels(routes{cpuPair: server})
		for n := range 7 {
			got := p.channelFor(cpuPair.local, cpuPair.remote, n).name
			for _, e := range entries { // by priority
				if e.MinBytes <= n {
					require.Equal(t, e.Name, got, "%d bytes, %v", n, least)
					break
				}
			}
		}
	})
}

func TestAnswersWithWrongSizes(t *testing.T) {
	for name, c := range map[string]struct {
		classes []wire.SizeClass
		suffix  string
	}{
		"a channel not offered": {[]wire.SizeClass{{Channel: "x", From: 1}}, ""},
		"another first":         {[]wire.SizeClass{{Channel: "b", From: 5}, {Channel: "a"}}, ""},
		"none for the pair":     {[]wire.SizeClass{{Channel: "other"}}, ""},
		"size overflows int":    {[]wire.SizeClass{{Channel: "a", From: 1 << 63}}, ""},
		"not a number":          {nil, " size:61=zz"},
		"a short number":        {nil, " size:61=00"},
		"no name":               {nil, " size:=0000000000000000"},
	} {
		t.Run(name, func(t *testing.T) {
			other := sizedEntry("other", 0, 0)
			other.Factory = announcedChannel{announced{descriptors: map[device.Device]string{{Kind: "npu"}: "any"}, connections: 1}}
			r, err := newRegistry(nil, []ChannelEntry{sizedEntry("a", 2, 0), sizedEntry("b", 1, 0), other}, Policy{})
			require.NoError(t, err)
			answer := &wire.BrochureAnswer{ChannelDeviceDescriptors: map[string]deviceDescriptors{"a": cpuOnly, "b": cpuOnly}}
			answer.Mark(wire.Marker{MinVersion: 1, MaxVersion: 1})
			answer.AddSizes(c.classes)
			answer.ChannelDeviceDescriptors[wire.MarkerName][device.CPU()] += c.suffix
			_, err = r.acceptRoutes(map[devicePair]string{cpuPair: "a"}, answer, true)
			require.ErrorIs(t, err, ErrProtocol)
		})
	}
}
