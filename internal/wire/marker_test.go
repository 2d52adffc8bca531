package wire

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// TestMarker checks that ParseMarker and String use a fixed encoding, which is used between
// versions: cases of this test may be added, not changed. ParseMarker ignores extensions and
// rejects other texts.
func TestMarker(t *testing.T) {
	for text, m := range map[string]Marker{
		"0-0+1":                {0, 0, FeatureControl},
		"1-3+ff":               {1, 3, 0xff},
		"0-4294967295+0":       {0, 1<<32 - 1, 0},
		"2-2+ffffffffffffffff": {2, 2, 1<<64 - 1},
	} {
		got, err := ParseMarker(text)
		require.NoError(t, err, text)
		require.Equal(t, m, got)
		require.Equal(t, text, m.String())
		got, err = ParseMarker(text + " whatever=comes later+-")
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
	for _, bad := range []string{"", "uv:*", "1", "1-2", "1+2", "2-1+0", "-1-2+0", "1-2+x", "1-4294967296+0", "1-2+10000000000000000", " 1-2+0"} {
		_, err := ParseMarker(bad)
		require.Error(t, err, bad)
	}
}

func TestMarkersInHandshake(t *testing.T) {
	marker := Marker{0, 2, 5}
	b := Brochure{TransportDomainDescriptors: map[string]string{"uv": "uv:*"}}
	_, ok := b.Marker()
	require.False(t, ok)
	b.Mark(marker)
	decoded, err := DecodeBrochure(b.Append(nil), Limits{})
	require.NoError(t, err)
	got, ok := decoded.Marker()
	require.True(t, ok)
	require.Equal(t, marker, got)

	a := BrochureAnswer{ChannelDeviceDescriptors: map[string]map[device.Device]string{}}
	_, ok = a.Marker()
	require.False(t, ok)
	a.Mark(marker)
	answer, err := DecodeBrochureAnswer(a.Append(nil), Limits{})
	require.NoError(t, err)
	got, ok = answer.Marker()
	require.True(t, ok)
	require.Equal(t, marker, got)
}

func TestControl(t *testing.T) {
	for want, m := range map[string]Control{
		"\x01\x02\x01\x00\x00\x00\x00\x00\x00": {Kind: WantRead, Number: 258},
		"\x02\xff\xff\xff\xff\xff\xff\xff\xff": {Kind: HaveRead, Number: 1<<64 - 1},
		"\x03shutting down":                    {Kind: Goodbye, Reason: "shutting down"},
		"\x03":                                 {Kind: Goodbye},
	} {
		require.Equal(t, want, string(m.Append(nil)))
		got, err := DecodeControl([]byte(want))
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
	unknown, err := DecodeControl([]byte("\x7fsomething new"))
	require.NoError(t, err)
	require.Equal(t, Control{Kind: 0x7f}, unknown)
	for _, bad := range []string{"", "\x01", "\x02\x00", "\x01123456789", "\x03\xff", "\x03" + strings.Repeat("a", MaxReason+1)} {
		_, err := DecodeControl([]byte(bad))
		require.Error(t, err, "%q", bad)
	}
	long := Control{Kind: Goodbye, Reason: strings.Repeat("ä", MaxReason)}.Append(nil)
	require.LessOrEqual(t, len(long), MaxControl)
	require.True(t, utf8.Valid(long[1:]))
}

func FuzzDecodeControl(f *testing.F) {
	f.Add([]byte("\x01\x02\x01\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("\x03shutting down"))
	f.Fuzz(func(t *testing.T, p []byte) {
		m, err := DecodeControl(p)
		if err != nil || m.Kind > Goodbye || m.Kind == 0 {
			return
		}
		require.Equal(t, p, m.Append(nil))
	})
}

func FuzzParseMarker(f *testing.F) {
	f.Add("0-0+1")
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ParseMarker(s)
		if err != nil {
			return
		}
		again, err := ParseMarker(m.String())
		require.NoError(t, err)
		require.Equal(t, m, again)
	})
}
