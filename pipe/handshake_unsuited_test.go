package pipe

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// selectiveChannel is a channel that suits pipes over uv only.
type selectiveChannel struct{ announcedChannel }

func (c selectiveChannel) Over(transport.Transport) channel.Factory { return c }

func (selectiveChannel) Suits(t transport.Transport) error {
	if t.DomainDescriptor() != "uv:*" {
		return errors.New("it makes nothing better")
	}
	return nil
}

// TestUnsuitedChannelIsNotUsed checks that a channel that declares itself unsuited for the
// transport is not used, unless the policy mentions it or no other channel serves a pair of
// devices.
func TestUnsuitedChannelIsNotUsed(t *testing.T) {
	cpu := map[device.Device]string{device.CPU(): "any"}
	announces := announcedChannel{announced{descriptors: cpu, connections: 1}}
	lanes := ChannelEntry{Name: "lanes", Priority: 2, Factory: selectiveChannel{announces}}
	plain := ChannelEntry{Name: "plain", Priority: 1, Factory: announces}
	unsuited := map[string]string{"lanes": "it makes nothing better"}
	none := map[string]string{}
	failed := map[string]string{"plain": "its probe failed"}
	for name, c := range map[string]struct {
		transport string
		channels  []ChannelEntry
		rule      Rule
		excluded  map[string]string
		want      map[string]string
	}{
		"unsuited":        {"shm", []ChannelEntry{lanes, plain}, Rule{}, none, unsuited},
		"suits":           {"uv", []ChannelEntry{lanes, plain}, Rule{}, none, none},
		"nothing else":    {"shm", []ChannelEntry{lanes}, Rule{}, none, none},
		"the other fails": {"shm", []ChannelEntry{lanes, plain}, Rule{}, failed, failed},
		"required":        {"shm", []ChannelEntry{lanes, plain}, Rule{Require: []string{"lanes"}}, none, none},
		"preferred":       {"shm", []ChannelEntry{lanes, plain}, Rule{Prefer: []string{"lanes"}}, none, none},
	} {
		t.Run(name, func(t *testing.T) {
			policy := Policy{Channels: c.rule}
			r, err := newRegistry([]TransportEntry{
				{"uv", 0, announcedTransport{announced{domain: "uv:*"}}},
				{"shm", 200, announcedTransport{announced{domain: "shm:1"}}},
			}, c.channels, policy)
			require.NoError(t, err)
			context := &Context{opts: Options{Policy: policy}}
			offer := clientOffer{Brochure: &wire.Brochure{ChannelDeviceDescriptors: r.channelDescriptors()}, marked: true}
			_, unusable := context.probeChannels(r, c.transport, offer, c.excluded)
			require.Equal(t, c.want, unusable)
		})
	}
}
