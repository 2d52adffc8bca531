package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
)

func TestRefusalIsAnAnswer(t *testing.T) {
	for _, kind := range []RefusalKind{RefusedByPolicy, RefusedByTransport, RefusedByDialect, RefusedOtherwise} {
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
	for word, want := range map[string]Refusal{
		"no-pipe:policy":       {RefusedByPolicy, ""},
		"no-pipe:":             {RefusedOtherwise, ""},
		"no-pipe:weather=6e6f": {RefusedOtherwise, "no"},
		"no-pipe:policy=x":     {RefusedByPolicy, ""},
		"no-pipe:policy=" + strings.Repeat("00", MaxRefusal+1): {RefusedByPolicy, ""},
	} {
		answer := BrochureAnswer{ChannelDeviceDescriptors: map[string]map[device.Device]string{}}
		answer.Mark(Marker{})
		answer.ChannelDeviceDescriptors[MarkerName][device.CPU()] += " " + word
		got, ok := answer.Refusal()
		require.True(t, ok, word)
		require.Equal(t, want, got, word)
	}
}
