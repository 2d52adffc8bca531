package wire

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// TestProbingInMarker checks that AddProbing appends the offers and reasons to the marker in a
// fixed encoding, which is used between versions, and Probing returns the same offers and reasons.
// A message without a marker gets none.
func TestProbingInMarker(t *testing.T) {
	p := Probing{
		Offers:  map[string][]byte{"cma": {0, 0xab}, "also": nil},
		Refused: map[string]string{"cma": "no: forbidden"},
		Without: map[string]string{"shm": "full"},

		NoSession: map[string]string{"own": "frames"},
		Unusable:  map[ChannelDevice]string{{"gdr", device.Device{Kind: "cuda", Index: 1}}: "no"},
	}
	b := Brochure{TransportDomainDescriptors: map[string]string{}}
	b.Mark(Marker{0, 1, 1})
	b.AddProbing(p)
	require.Equal(t, "0-1+1 probe:also= probe:cma=00ab no-session:own=6672616d6573 refused:cma=6e6f3a20666f7262696464656e unusable:gdr,cuda:1=6e6f without:shm=66756c6c",
		b.TransportDomainDescriptors[MarkerName])
	a := BrochureAnswer{ChannelDeviceDescriptors: map[string]map[device.Device]string{}}
	a.Mark(Marker{1, 1, 1})
	a.AddProbing(p)

	p.Offers["also"] = []byte{}
	require.Equal(t, p, b.Probing())
	require.Equal(t, p, a.Probing())
	marker, ok := b.Marker()
	require.True(t, ok)
	require.Equal(t, Marker{0, 1, 1}, marker)

	var unmarked Brochure
	unmarked.AddProbing(p)
	require.True(t, unmarked.Probing().Empty())
	var unmarkedAnswer BrochureAnswer
	unmarkedAnswer.AddProbing(p)
	require.True(t, unmarkedAnswer.Probing().Empty())
}

// TestProbingIsBounded checks that AddProbing omits names and offers that exceed the limits and
// truncates reasons; Probing ignores extensions that exceed the limits or are malformed.
func TestProbingIsBounded(t *testing.T) {
	long := strings.Repeat("x", 1000)
	p := Probing{
		Offers:  map[string][]byte{"": {1}, "a b": {1}, "a=b": {1}, long: {1}, "large": make([]byte, 257), "fits": make([]byte, 256)},
		Refused: map[string]string{"cut": strings.Repeat("x", 255) + "ä"},
		Without: map[string]string{"cut": strings.Repeat("y", 255) + "ä"},
	}
	got := parseProbing(p.extend("0-1+1"))
	require.Equal(t, map[string][]byte{"fits": make([]byte, 256)}, got.Offers)
	require.Equal(t, map[string]string{"cut": strings.Repeat("x", 255)}, got.Refused)
	require.Equal(t, map[string]string{"cut": strings.Repeat("y", 255)}, got.Without)

	full := Probing{Offers: map[string][]byte{}, Refused: map[string]string{}, NoSession: map[string]string{}}
	for i := range 100 {
		name := fmt.Sprintf("name%02d", i)
		full.Offers[name], full.NoSession[name], full.Refused[name] = []byte{1}, "no", strings.Repeat("z", 256)
	}
	text := full.extend("0-1+1")
	require.LessOrEqual(t, len(text), Limits{}.WithDefaults().Text, "a reader with the default limits accepts it")
	require.Equal(t, MaxProbed, strings.Count(text, " probe:"))
	require.Equal(t, MaxProbed, strings.Count(text, " no-session:"))
	require.Equal(t, (maxMarker-len("0-1+1")-MaxProbed*(len(" probe:name00=01")+len(" no-session:name00=6e6f")))/
		len(" refused:name00="+strings.Repeat("7a", 256)), strings.Count(text, " refused:"))
	require.Len(t, parseProbing(text).Offers, MaxProbed)

	many := "0-1+1"
	for i := range 100 {
		name := strings.Repeat("n", i)
		many += " probe:" + name + "=00 refused:" + name + "=00 without:" + name + "=00"
	}
	got = parseProbing(many)
	require.Len(t, got.Offers, MaxProbed)
	require.Len(t, got.Refused, MaxProbed)
	require.Len(t, got.Without, MaxProbed)
	some := Probing{Unusable: map[ChannelDevice]string{
		{"gdr", device.Device{Kind: "cuda", Index: 1}}: "no memory",
		{"a,b", device.CPU()}:                          "",
		{"gdr", device.Device{Kind: "a,b"}}:            "a comma",
		{"gdr", device.Device{Kind: "a b"}}:            "a space",
		{"gdr", device.Device{}}:                       "no device",
		{"", device.CPU()}:                             "no channel",
		{"gdr", device.Device{Kind: long}}:             "long",
	}}
	require.Equal(t, map[ChannelDevice]string{
		{"gdr", device.Device{Kind: "cuda", Index: 1}}: "no memory", {"a,b", device.CPU()}: "",
	}, parseProbing(some.extend("0-1+1")).Unusable)
	require.Empty(t, parseProbing("0-1+1 unusable:gdr=00 unusable:,cpu:0=00 unusable:gdr,any=00 unusable:gdr,cpu:x=00 unusable:gdr,=00").Unusable)
	many = "0-1+1"
	for i := range 100 {
		many += fmt.Sprintf(" unusable:gdr,cuda:%d=00", i)
	}
	require.Len(t, parseProbing(many).Unusable, MaxProbed)

	for _, nothing := range []string{"", "0-1+1", "0-1+1 ", "0-1+1  = whatever=12 probe: refused:cma=x probe:cma=1", "probe:cma=00",
		"0-1+1 probe:cma=" + strings.Repeat("00", 257), "0-1+1 probe:" + long + "=00"} {
		require.Empty(t, parseProbing(nothing).Offers["cma"], nothing)
		require.Empty(t, parseProbing(nothing).Refused, nothing)
	}
}

func FuzzParseProbing(f *testing.F) {
	f.Add("0-1+1 probe:cma=00ab refused:cma=6e6f")
	f.Add("0-1+1 prefer-transport:uv prefer-channel:cma needs-channel")
	f.Add("0-0+0 no-pipe:policy=6e6f")
	f.Fuzz(func(t *testing.T, s string) {
		p := parseProbing(s)
		require.LessOrEqual(t, len(p.Offers), MaxProbed)
		for _, offer := range p.Offers {
			require.LessOrEqual(t, len(offer), maxProbedBytes)
		}
		w := (&Brochure{TransportDomainDescriptors: map[string]string{MarkerName: s}}).Preferences()
		require.LessOrEqual(t, max(len(w.Transports), len(w.Channels)), maxPreferences)
		r, _ := (&BrochureAnswer{ChannelDeviceDescriptors: map[string]map[device.Device]string{MarkerName: {device.CPU(): s}}}).Refusal()
		require.LessOrEqual(t, len(r.Text), MaxRefusal)
	})
}

func TestRefusalIsAnAnswer(t *testing.T) {
	for _, kind := range []RefusalKind{RefusedByPolicy, RefusedByTransport, RefusedByDialect, RefusedByListener, RefusedByLimit, RefusedOtherwise} {
		r := Refusal{kind, "because: of that"}
		answer, err := DecodeBrochureAnswer(NewRefusal(r).Append(nil), Limits{})
		require.NoError(t, err)
		require.Empty(t, answer.Transport)
		got, ok := answer.Refusal()
		require.True(t, ok)
		require.Equal(t, r, got)
	}
	ordinary := BrochureAnswer{ChannelDeviceDescriptors: map[string]map[device.Device]string{}}
	_, ok := ordinary.Refusal()
	require.False(t, ok)
	ordinary.Mark(Marker{1, 1, 1})
	_, ok = ordinary.Refusal()
	require.False(t, ok)
}

func TestRefusalIsBounded(t *testing.T) {
	got, ok := NewRefusal(Refusal{RefusedByPolicy, strings.Repeat("x", MaxRefusal-1) + "ä"}).Refusal()
	require.True(t, ok)
	require.Equal(t, Refusal{RefusedByPolicy, strings.Repeat("x", MaxRefusal-1)}, got)
	for extension, want := range map[string]Refusal{
		"no-pipe:policy":       {RefusedByPolicy, ""},
		"no-pipe:":             {RefusedOtherwise, ""},
		"no-pipe:weather=6e6f": {RefusedOtherwise, "no"},
		"no-pipe:policy=x":     {RefusedByPolicy, ""},
		"no-pipe:policy=" + strings.Repeat("00", MaxRefusal+1): {RefusedByPolicy, ""},
	} {
		answer := BrochureAnswer{ChannelDeviceDescriptors: map[string]map[device.Device]string{}}
		answer.Mark(Marker{})
		answer.ChannelDeviceDescriptors[MarkerName][device.CPU()] += " " + extension
		got, ok := answer.Refusal()
		require.True(t, ok, extension)
		require.Equal(t, want, got, extension)
	}
}

func markedBrochure() *Brochure {
	b := &Brochure{TransportDomainDescriptors: map[string]string{}}
	b.Mark(Marker{0, 1, 1})
	return b
}

func TestPreferencesInMarker(t *testing.T) {
	w := Preferences{Transports: []string{"uv", "shm"}, Channels: []string{"mpt_uv"}, NeedsChannel: true}
	b := markedBrochure()
	b.AddProbing(Probing{Refused: map[string]string{"cma": "no"}})
	b.AddPreferences(w)
	require.Equal(t, "0-1+1 refused:cma=6e6f prefer-transport:uv prefer-transport:shm prefer-channel:mpt_uv needs-channel",
		b.TransportDomainDescriptors[MarkerName])
	decoded, err := DecodeBrochure(b.Append(nil), Limits{})
	require.NoError(t, err)
	require.Equal(t, w, decoded.Preferences())
	require.Equal(t, map[string]string{"cma": "no"}, decoded.Probing().Refused)

	plain := markedBrochure()
	plain.AddPreferences(Preferences{})
	require.Equal(t, "0-1+1", plain.TransportDomainDescriptors[MarkerName])
	var unmarked Brochure
	unmarked.AddPreferences(w)
	require.Empty(t, unmarked.Preferences())
}

func TestConnsInMarker(t *testing.T) {
	b := markedBrochure()
	require.False(t, b.WantsConns())
	b.RequestConns()
	require.Equal(t, "0-1+1 conns", b.TransportDomainDescriptors[MarkerName])
	require.True(t, b.WantsConns())
	var unmarked Brochure
	unmarked.RequestConns()
	require.False(t, unmarked.WantsConns())

	answer := BrochureAnswer{ChannelDeviceDescriptors: map[string]map[device.Device]string{}}
	answer.AddConns(7)
	require.Zero(t, answer.Conns())
	answer.Mark(Marker{1, 1, 1})
	require.Zero(t, answer.Conns())
	answer.AddConns(7)
	require.Equal(t, "1-1+1 conns:7", answer.ChannelDeviceDescriptors[MarkerName][device.CPU()])
	require.Equal(t, 7, answer.Conns())
	for _, bad := range []string{"conns", "conns:", "conns:0", "conns:-1", "conns:4097", "conns:x"} {
		answer.Mark(Marker{1, 1, 1})
		answer.ChannelDeviceDescriptors[MarkerName][device.CPU()] += " " + bad
		require.Zero(t, answer.Conns(), bad)
	}
}

func TestPreferencesAreBounded(t *testing.T) {
	long := strings.Repeat("x", 65)
	b := markedBrochure()
	b.AddPreferences(Preferences{Channels: []string{"", "a b", "a=b", long, "fits", "fits"}})
	require.Equal(t, Preferences{Channels: []string{"fits"}}, b.Preferences())

	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprint("n", i))
	}
	b = markedBrochure()
	b.AddPreferences(Preferences{Transports: many})
	require.Equal(t, many[:16], b.Preferences().Transports)
	for _, name := range append(many, long, "") {
		b.TransportDomainDescriptors[MarkerName] += " prefer-channel:" + name
	}
	require.Equal(t, many[:16], b.Preferences().Channels)
}
