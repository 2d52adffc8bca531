package pipe

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// choosy is a channel that is for pipes over uv only.
type choosy struct{ announcedChannel }

func (choosy) Suits(t transport.Transport) error {
	if t.DomainDescriptor() != "uv:*" {
		return errors.New("it makes nothing better")
	}
	return nil
}

// A channel that makes nothing better is passed over, but not where the
// application asks for it, or nothing else serves a device.
func TestPassOver(t *testing.T) {
	cpu := map[device.Device]string{device.CPU(): "any"}
	announces := announcedChannel{announced{descriptors: cpu, connections: 1}}
	lanes := ChannelEntry{Name: "lanes", Priority: 2, Factory: choosy{announces}}
	plain := ChannelEntry{Name: "plain", Priority: 1, Factory: announces}
	because := map[string]string{"lanes": "it makes nothing better"}
	none := map[string]string{}
	failed := map[string]string{"plain": "a trial failed"}
	for name, c := range map[string]struct {
		transport string
		channels  []ChannelEntry
		rule      Rule
		tried     map[string]string
		want      map[string]string
	}{
		"passed over":     {"shm", []ChannelEntry{lanes, plain}, Rule{}, none, because},
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
			require.Equal(t, c.want, r.passOver(c.transport, r.offers(), c.tried, c.rule.asksFor))
		})
	}
}
