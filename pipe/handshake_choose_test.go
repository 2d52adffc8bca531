package pipe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// announced is a transport or channel that only has descriptors, which is enough for
// choosing.
type announced struct {
	domain      string
	descriptors map[device.Device]string
	connections int
	broken      error
}

func (a announced) Viable() error                               { return a.broken }
func (a announced) DomainDescriptor() string                    { return a.domain }
func (a announced) DeviceDescriptors() map[device.Device]string { return a.descriptors }
func (a announced) Connections(bool) int                        { return a.connections }
func (announced) Dial(context.Context, string) (transport.Conn, error) {
	return nil, errors.ErrUnsupported
}

func (announced) Listen(context.Context, string) (transport.Listener, error) {
	return nil, errors.ErrUnsupported
}

func (announced) New(context.Context, channel.Link, channel.Role) (channel.Channel, error) {
	return nil, errors.ErrUnsupported
}

type announcedTransport struct{ announced }

func (a announcedTransport) CanCommunicate(remote string) bool { return a.domain == remote }

type announcedChannel struct{ announced }

func (announcedChannel) CanCommunicate(local, remote string) bool { return local == remote }

// end returns a random registry of one end of a pipe, drawn from t; label begins the names of the
// drawn values. Names, descriptors and lane counts are from small sets, so that two ends often
// match and often do not.
func end(t *rapid.T, label string) *registry {
	r, err := newRegistry(
		transportEntries(rapid.SliceOfNDistinct(rapid.Custom(drawEntry), 1, 4, entryName).Draw(t, label+" transports")),
		channelEntries(rapid.SliceOfNDistinct(rapid.Custom(drawEntry), 0, 5, entryName).Draw(t, label+" channels")),
		Policy{})
	require.NoError(t, err)
	return r
}

type entry struct {
	name     string
	priority int
	domain   string
	lanes    int
	devices  []device.Device
}

func entryName(e entry) string { return e.name }

func drawEntry(t *rapid.T) entry {
	devices := []device.Device{device.CPU(), {Kind: "npu"}, {Kind: "npu", Index: 1}}
	return entry{
		name:     rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "name"),
		priority: rapid.IntRange(0, 1<<20).Draw(t, "priority"),
		domain:   rapid.SampledFrom([]string{"x", "y"}).Draw(t, "domain"),
		lanes:    rapid.IntRange(1, 3).Draw(t, "lanes"),
		devices:  rapid.SliceOfDistinct(rapid.SampledFrom(devices), func(d device.Device) device.Device { return d }).Draw(t, "devices"),
	}
}

// distinct sorts entries by priority, changes the priorities to unique ones in that order, and
// returns entries itself.
func distinct(entries []entry) []entry {
	slices.SortStableFunc(entries, func(a, b entry) int { return a.priority - b.priority })
	for i := range entries {
		entries[i].priority = entries[i].priority*8 + i
	}
	return entries
}

func transportEntries(entries []entry) (out []TransportEntry) {
	for _, e := range distinct(entries) {
		out = append(out, TransportEntry{e.name, e.priority, announcedTransport{announced{domain: e.domain}}})
	}
	return out
}

func channelEntries(entries []entry) (out []ChannelEntry) {
	for _, e := range distinct(entries) {
		descriptors := map[device.Device]string{}
		for _, d := range e.devices {
			descriptors[d] = fmt.Sprintf("%d:%s", e.lanes, e.domain)
		}
		out = append(out, ChannelEntry{Name: e.name, Priority: e.priority, Factory: announcedChannel{announced{descriptors: descriptors, connections: e.lanes}}})
	}
	return out
}

// TestChoiceFollowsTheProtocol compares the server's choice with a second implementation of
// chapters 1.6 and 1.7 of the protocol: the common transport, and for each pair of devices the
// common and compatible channel, of the highest priority. It also checks that the client accepts
// the choice.
func TestChoiceFollowsTheProtocol(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		server, client := end(t, "server"), end(t, "client")
		listens := rapid.Map(rapid.SliceOf(rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"})), nameSet).Draw(t, "listens")

		gotTransport, _ := server.chooseTransport(client.transportDomains(), func(name string) bool { return listens[name] }, nil)
		require.Equal(t, modelTransport(server, client, listens), gotTransport)

		got, refused := server.chooseChannels(client.channelDescriptors(), nil)
		require.Equal(t, modelChannels(server, client), got)
		requireExplained(t, server, got, refused)

		accepted, err := client.acceptChannels(answerFor(server, got), false)
		require.NoError(t, err)
		require.Equal(t, mirror(got), accepted)
	})
}

func nameSet(names []string) map[string]bool {
	set := map[string]bool{}
	for _, n := range names {
		set[n] = true
	}
	return set
}

func modelTransport(server, client *registry, listens map[string]bool) string {
	best, priority := "", -1
	for _, s := range server.transports {
		for _, c := range client.transports {
			same := s.Name == c.Name && s.Transport.DomainDescriptor() == c.Transport.DomainDescriptor()
			if same && listens[s.Name] && s.Priority > priority {
				best, priority = s.Name, s.Priority
			}
		}
	}
	return best
}

func modelChannels(server, client *registry) map[devicePair]string {
	chosen, priority := map[devicePair]string{}, map[devicePair]int{}
	for _, s := range server.channels {
		for _, c := range client.channels {
			if s.Name != c.Name {
				continue
			}
			for local, ours := range s.Factory.DeviceDescriptors() {
				for remote, theirs := range c.Factory.DeviceDescriptors() {
					pair := devicePair{local, remote}
					if p, taken := priority[pair]; ours == theirs && (!taken || s.Priority > p) {
						chosen[pair], priority[pair] = s.Name, s.Priority
					}
				}
			}
		}
	}
	return chosen
}

// requireExplained requires that every channel of r is either in chosen or in refused, not in both,
// and that each refusal has a reason.
func requireExplained(t require.TestingT, r *registry, chosen map[devicePair]string, refused []Refusal) {
	names := nameSet(slices.Collect(maps.Values(chosen)))
	for _, refusal := range refused {
		require.False(t, names[refusal.Name], "%s is chosen and refused", refusal.Name)
		require.NotEmpty(t, refusal.Reason)
		names[refusal.Name] = true
	}
	for _, e := range r.channels {
		require.True(t, names[e.Name], "%s is neither chosen nor refused", e.Name)
	}
}

// answerFor returns the answer of a server that has chosen these channels, with only the fields
// that acceptChannels reads.
func answerFor(server *registry, chosen map[devicePair]string) *wire.BrochureAnswer {
	a := &wire.BrochureAnswer{
		ChannelRegistrationIDs:   map[string][]uint64{},
		ChannelDeviceDescriptors: map[string]deviceDescriptors{},
		ChannelForDevicePair:     map[wire.DevicePair]string{},
	}
	for pair, name := range chosen {
		e, _ := server.channel(name)
		a.ChannelForDevicePair[wire.DevicePair{Server: pair.local, Client: pair.remote}] = name
		a.ChannelRegistrationIDs[name] = make([]uint64, e.Factory.Connections(false))
		a.ChannelDeviceDescriptors[name] = e.Factory.DeviceDescriptors()
	}
	return a
}

func mirror(chosen map[devicePair]string) map[devicePair]string {
	out := map[devicePair]string{}
	for pair, name := range chosen {
		out[devicePair{pair.remote, pair.local}] = name
	}
	return out
}

// TestAnswerIsChecked checks that the client rejects, with ErrProtocol, answers that a correct
// server does not send: wrong channels, devices, descriptors or numbers of connections.
func TestAnswerIsChecked(t *testing.T) {
	cpu := device.CPU()
	one := map[device.Device]string{cpu: "any"}
	r, err := newRegistry(nil, []ChannelEntry{{Name: "basic", Priority: 1, Factory: announcedChannel{announced{descriptors: one, connections: 1}}}}, Policy{})
	require.NoError(t, err)
	valid := map[devicePair]string{{cpu, cpu}: "basic"}
	tests := map[string]func(a *wire.BrochureAnswer){
		"a channel that was not offered": func(a *wire.BrochureAnswer) {
			a.ChannelForDevicePair[wire.DevicePair{Server: cpu, Client: cpu}] = "warp"
		},
		"a device of ours that does not exist": func(a *wire.BrochureAnswer) {
			a.ChannelForDevicePair[wire.DevicePair{Server: cpu, Client: device.Device{Kind: "cpu", Index: 7}}] = "basic"
		},
		"a device of its own without descriptor": func(a *wire.BrochureAnswer) {
			a.ChannelForDevicePair[wire.DevicePair{Server: device.Device{Kind: "npu"}, Client: cpu}] = "basic"
		},
		"a descriptor that does not match ours": func(a *wire.BrochureAnswer) {
			a.ChannelDeviceDescriptors["basic"] = map[device.Device]string{cpu: "other"}
		},
		"too few connections": func(a *wire.BrochureAnswer) { a.ChannelRegistrationIDs["basic"] = nil },
		"too many connections": func(a *wire.BrochureAnswer) {
			a.ChannelRegistrationIDs["basic"] = make([]uint64, 1000)
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			a := answerFor(r, valid)
			_, err := r.acceptChannels(a, false)
			require.NoError(t, err)
			change(a)
			_, err = r.acceptChannels(a, false)
			require.ErrorIs(t, err, ErrProtocol)
		})
	}
}

func TestRegistryRefusesAmbiguity(t *testing.T) {
	ok := announcedTransport{announced{domain: "x"}}
	tests := map[string][]TransportEntry{
		"has no name":           {{"", 1, ok}},
		"registered twice":      {{"a", 1, ok}, {"a", 2, ok}},
		"priority 1 is given":   {{"a", 1, ok}, {"b", 1, ok}},
		"has no implementation": {{"a", 1, nil}},
	}
	for text, entries := range tests {
		_, err := newRegistry(entries, nil, Policy{})
		require.ErrorContains(t, err, text)
	}
}

func TestRegistryRefusesUnencodableDevices(t *testing.T) {
	for _, d := range []device.Device{{}, {Kind: "npu", Index: -1}, {Kind: "npu", Index: 1 << 40}} {
		_, err := newRegistry(nil, []ChannelEntry{{Name: "c", Priority: 1, Factory: announcedChannel{announced{
			descriptors: map[device.Device]string{d: "any"},
		}}}}, Policy{})
		require.ErrorContains(t, err, `channel "c"`, "%+v", d)
	}
}

func TestRegistryOmitsUnusableEntries(t *testing.T) {
	r, err := newRegistry([]TransportEntry{
		{"good", 1, announcedTransport{announced{domain: "x"}}},
		{"broken", 2, announcedTransport{announced{domain: "y", broken: errors.New("no such hardware")}}},
		{"forbidden", 3, announcedTransport{announced{domain: "z"}}},
	}, nil, Policy{Transports: Rule{Forbid: []string{"forbidden"}}})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"good": "x"}, r.transportDomains())
	require.Equal(t, []Refusal{
		{Kind: "transport", Name: "forbidden", Reason: "forbidden by the policy"},
		{Kind: "transport", Name: "broken", Reason: "no such hardware"},
	}, r.refused)
}

func TestPolicyPrefersAndRequires(t *testing.T) {
	cpu := map[device.Device]string{device.CPU(): "any"}
	entries := []ChannelEntry{
		{Name: "fast", Priority: 2, Factory: announcedChannel{announced{descriptors: cpu, connections: 1}}},
		{Name: "slow", Priority: 1, Factory: announcedChannel{announced{descriptors: cpu, connections: 1}}},
	}
	pair := devicePair{device.CPU(), device.CPU()}
	r, err := newRegistry(nil, entries, Policy{Channels: Rule{Prefer: []string{"slow"}}})
	require.NoError(t, err)
	chosen, refused := r.chooseChannels(r.channelDescriptors(), nil)
	require.Equal(t, map[devicePair]string{pair: "slow"}, chosen)
	plan := r.newPlan("uv", single(chosen), refused)

	require.NoError(t, Policy{Channels: Rule{Require: []string{"slow"}}}.check(plan))
	err = Policy{Channels: Rule{Require: []string{"fast"}}}.check(plan)
	require.ErrorIs(t, err, ErrPolicy)
	require.ErrorContains(t, err, "slow goes before it")
	require.ErrorIs(t, Policy{Transports: Rule{Require: []string{"shm"}}}.check(plan), ErrPolicy)
	require.ErrorIs(t, Policy{Channels: Rule{Require: []string{"fast"}}}.check(&Plan{Transport: "uv"}), ErrPolicy)
}

// single returns routes in which each pair of devices has the channel in chosen for tensors of all
// sizes.
func single(chosen map[devicePair]string) routes {
	out := routes{}
	for pair, name := range chosen {
		out[pair] = route{{name, 0}}
	}
	return out
}

// TestPlanString compares the text of a plan with testdata/plan.golden, and checks Plan.Equal and
// Plan.Channel.
func TestPlanString(t *testing.T) {
	descriptors := func(text string, devices ...device.Device) map[device.Device]string {
		m := map[device.Device]string{}
		for _, d := range devices {
			m[d] = text
		}
		return m
	}
	cpu, npu := device.CPU(), device.Device{Kind: "npu"}
	server, err := newRegistry([]TransportEntry{
		{"uv", 0, announcedTransport{announced{domain: "uv:*"}}},
		{"shm", 200, announcedTransport{announced{domain: "shm:1"}}},
	}, []ChannelEntry{
		{Name: "basic", Priority: 1000, Factory: announcedChannel{announced{descriptors: descriptors("any", cpu), connections: 1}}},
		{Name: "cma", Priority: 1200, Factory: announcedChannel{announced{descriptors: descriptors("cma:1", cpu), connections: 2}}},
		{Name: "staged", Priority: 10, Factory: announcedChannel{announced{descriptors: descriptors("any", cpu, npu), connections: 1}}},
		{Name: "cuda_ipc", Priority: 300, Factory: announcedChannel{announced{broken: errors.New("cuda_ipc is not supported: no driver")}}},
		{Name: "warp", Priority: 5, Factory: announcedChannel{announced{descriptors: descriptors("any", cpu), connections: 1}}},
	}, Policy{})
	require.NoError(t, err)
	client := map[string]deviceDescriptors{
		"basic": descriptors("any", cpu), "cma": descriptors("cma:2", cpu), "staged": descriptors("any", cpu),
	}
	name, refused := server.chooseTransport(map[string]string{"uv": "uv:*", "shm": "shm:2"}, func(string) bool { return true }, nil)
	chosen, more := server.chooseChannels(client, nil)
	plan := server.newPlan(name, single(chosen), append(refused, more...))
	golden, err := os.ReadFile("testdata/plan.golden")
	require.NoError(t, err)
	require.Equal(t, string(golden), plan.String())
	require.True(t, plan.Equal(server.newPlan(name, single(chosen), append(refused, more...))))
	require.False(t, plan.Equal(server.newPlan("shm", single(chosen), nil)))
	got, ok := plan.Channel(npu, cpu)
	require.True(t, ok)
	require.Equal(t, "staged", got)
}

// TestSanitizedTextIsBounded checks that sanitizeTo returns valid UTF-8 of at most the given size,
// whatever bytes the text of the peer has.
func TestSanitizedTextIsBounded(t *testing.T) {
	require.Equal(t, "as it is: äöü", sanitizeTo("as it is: äöü", 16))
	require.Equal(t, "a?b?", sanitizeTo("a\nb\xff", 4))
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(3, 300).Draw(t, "n")
		got := sanitizeTo(string(rapid.SliceOf(rapid.Byte()).Draw(t, "text")), n)
		require.LessOrEqual(t, len(got), n)
		require.True(t, utf8.ValidString(got))
	})
	require.LessOrEqual(t, len(sanitizeTo(strings.Repeat("\xff", 1000), 80)), 80)
	require.LessOrEqual(t, len(sanitizeTo(strings.Repeat("\xff\x00", 1000), 80)), 80)
}
