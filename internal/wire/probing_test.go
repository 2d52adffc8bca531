package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Like the marker, these words are on the wire between versions.
func TestProbingTravelsBehindTheMarker(t *testing.T) {
	p := Probing{
		Offers:  map[string][]byte{"cma": {0, 0xab}, "also": nil},
		Refused: map[string]string{"cma": "no: forbidden"},
		Without: map[string]string{"shm": "full"},
	}
	b := Brochure{TransportDomainDescriptors: map[string]string{}}
	b.Mark(Marker{0, 1, 1})
	b.AddProbing(p)
	require.Equal(t, "0-1+1 probe:also= probe:cma=00ab refused:cma=6e6f3a20666f7262696464656e without:shm=66756c6c",
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

// Neither end says, or believes, more than fits.
func TestProbingIsBounded(t *testing.T) {
	long := strings.Repeat("x", 1000)
	p := Probing{
		Offers:  map[string][]byte{"": {1}, "a b": {1}, "a=b": {1}, long: {1}, "large": make([]byte, 257), "fits": make([]byte, 256)},
		Refused: map[string]string{"cut": strings.Repeat("x", 255) + "ä"},
		Without: map[string]string{"cut": strings.Repeat("y", 255) + "ä"},
	}
	got := parseProbing("0-1+1" + p.words())
	require.Equal(t, map[string][]byte{"fits": make([]byte, 256)}, got.Offers)
	require.Equal(t, map[string]string{"cut": strings.Repeat("x", 255)}, got.Refused)
	require.Equal(t, map[string]string{"cut": strings.Repeat("y", 255)}, got.Without)

	many := "0-1+1"
	for i := range 100 {
		name := strings.Repeat("n", i)
		many += " probe:" + name + "=00 refused:" + name + "=00 without:" + name + "=00"
	}
	got = parseProbing(many)
	require.Len(t, got.Offers, MaxProbed)
	require.Len(t, got.Refused, MaxProbed)
	require.Len(t, got.Without, MaxProbed)
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
		w := (&Brochure{TransportDomainDescriptors: map[string]string{MarkerName: s}}).Wishes()
		require.LessOrEqual(t, max(len(w.Transports), len(w.Channels)), maxWishes)
		r, _ := (&BrochureAnswer{ChannelDeviceDescriptors: map[string]map[device.Device]string{MarkerName: {device.CPU(): s}}}).Refusal()
		require.LessOrEqual(t, len(r.Text), MaxRefusal)
	})
}
