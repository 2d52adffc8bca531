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

// routed is the choice of a listening end that has these channels, and what the
// other end makes of its answer.
func routed(t require.TestingT, native bool, entries ...ChannelEntry) (listening, dialling route) {
	r, err := newRegistry(nil, entries, Policy{})
	require.NoError(t, err)
	chosen, _ := r.chooseChannels(r.offers(), nil)
	all := r.routesOf(chosen, native, func(e ChannelEntry, pair devicePair) bool { return e.serves(pair, cpuOnly) })
	answer := &wire.BrochureAnswer{ChannelDeviceDescriptors: map[string]deviceDescriptors{}}
	for _, e := range r.selected(all) {
		answer.ChannelDeviceDescriptors[e.Name] = cpuOnly
	}
	answer.Mark(wire.Marker{MinVersion: wire.VersionNative, MaxVersion: wire.VersionNative})
	answer.AddSizes(r.sizes(all))
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
		"nobody else":           {[]ChannelEntry{sizedEntry("a", 2, 100)}, true, route{{"a", 0}}},
		"the dialect has none":  {[]ChannelEntry{sizedEntry("a", 2, 100), sizedEntry("b", 1, 0)}, false, route{{"a", 0}}},
		"less than none is all": {[]ChannelEntry{sizedEntry("a", 2, -1), sizedEntry("b", 1, 0)}, true, route{{"a", 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			listening, dialling := routed(t, c.native, c.entries...)
			require.Equal(t, c.want, listening)
			require.Equal(t, c.want, dialling)
		})
	}
}

// Both ends send every size on the same channel, and it is one that is not too
// large for it unless there is no other.
func TestBothEndsRouteAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var entries []ChannelEntry
		least := map[string]int{}
		for i, from := range rapid.SliceOfN(rapid.IntRange(0, 5), 1, 6).Draw(t, "from") {
			name := string(rune('a' + i))
			least[name] = from
			entries = append(entries, sizedEntry(name, -i, from))
		}
		listening, dialling := routed(t, true, entries...)
		require.Equal(t, listening, dialling)

		p := &Pipe{lanes: map[devicePair][]sizedLane{}, arriving: map[device.Device]device.Device{}, leaving: map[device.Device]struct{}{}}
		for _, e := range entries {
			p.channels = append(p.channels, &lane{name: e.Name})
		}
		p.assignLanes(routes{cpuPair: listening})
		for n := range 7 {
			got := p.laneFor(cpuPair.local, cpuPair.remote, n).name
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
		words   string
	}{
		"a channel not offered": {[]wire.SizeClass{{Channel: "x", From: 1}}, ""},
		"another first":         {[]wire.SizeClass{{Channel: "b", From: 5}, {Channel: "a"}}, ""},
		"none for the pair":     {[]wire.SizeClass{{Channel: "other"}}, ""},
		"a size of no int":      {[]wire.SizeClass{{Channel: "a", From: 1 << 63}}, ""},
		"no number":             {nil, " size:61=zz"},
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
			answer.ChannelDeviceDescriptors[wire.MarkerName][device.CPU()] += c.words
			_, err = r.acceptRoutes(map[devicePair]string{cpuPair: "a"}, answer, true)
			require.ErrorIs(t, err, ErrProtocol)
		})
	}
}
