package pipe

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/loglines"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// A C++ peer that dials takes nothing but what its own priorities give: where a policy
// forbids that there is no pipe, and no word that the peer would not understand.
func TestPolicyAndForeignPeer(t *testing.T) {
	anywhere := announcedChannel{announced{descriptors: map[device.Device]string{device.CPU(): "any"}, connections: 1}}
	network := mem.NewNetwork()
	var log loglines.Lines
	options := Options{
		Transports: []TransportEntry{{Name: "mem", Transport: mem.New(network)}},
		Channels:   []ChannelEntry{{Name: "first", Priority: 2, Factory: anywhere}, {Name: "second", Priority: 1, Factory: anywhere}},
	}
	foreign, err := New(options)
	require.NoError(t, err)
	foreign.unmarked = true
	defer foreign.Close()
	options.Policy.Channels.Require = []string{"second"}
	options.Logger = log.Logger()
	ours, err := New(options)
	require.NoError(t, err)
	defer ours.Close()
	l, err := ours.Listen(t.Context(), "mem://")
	require.NoError(t, err)

	_, err = foreign.Dial(t.Context(), l.URLs()[0])
	require.ErrorIs(t, err, ErrHandshake)
	require.ErrorIs(t, err, ErrPeerClosed)
	require.Contains(t, log.String(), "the channel for cpu:0 to cpu:0 would be first, required is second")
}
