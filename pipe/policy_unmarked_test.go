package pipe

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/loglines"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// TestPolicyWithUnmarkedClient checks that if the server's policy forbids the channel that a C++
// client must get by its priorities, Dial fails with ErrPeerClosed and the server logs the reason.
// The server sends no rejection, because a C++ client would not understand one.
func TestPolicyWithUnmarkedClient(t *testing.T) {
	anywhere := announcedChannel{announced{descriptors: map[device.Device]string{device.CPU(): "any"}, connections: 1}}
	network := mem.NewNetwork()
	var log loglines.Lines
	options := Options{
		Transports: []TransportEntry{{Name: "mem", Transport: mem.New(network)}},
		Channels:   []ChannelEntry{{Name: "first", Priority: 2, Factory: anywhere}, {Name: "second", Priority: 1, Factory: anywhere}},
	}
	unmarked, err := New(options)
	require.NoError(t, err)
	unmarked.hideMarker = true
	defer unmarked.Close()
	options.Policy.Channels.Require = []string{"second"}
	options.Logger = log.Logger()
	ours, err := New(options)
	require.NoError(t, err)
	defer ours.Close()
	l, err := ours.Listen(t.Context(), "mem://")
	require.NoError(t, err)

	_, err = unmarked.Dial(t.Context(), l.URLs()[0])
	require.ErrorIs(t, err, ErrHandshake)
	require.ErrorIs(t, err, ErrPeerClosed)
	require.Contains(t, log.String(), "the channel for cpu:0 to cpu:0 would be first, required is second")
}
