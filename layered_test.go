package tensorpipe_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// layeredFactory is a channel of the test's own that declares channel.Layered. It records the transports
// that it is given.
type layeredFactory struct {
	channel.Factory
	given *[]transport.Transport
}

func (f layeredFactory) Over(t transport.Transport) channel.Factory {
	*f.given = append(*f.given, t)
	return f
}

func (layeredFactory) Suits(transport.Transport) error { return nil }

// TestLayeredChannelUsesTheTransportOfItsName checks that NewContext passes the application's
// transport to a channel of the profile that declares that it opens connections of its own
// ([channel.Layered]) and whose name ends with the transport's name. Other channels get none.
func TestLayeredChannelUsesTheTransportOfItsName(t *testing.T) {
	own := pipe.TransportEntry{Name: "own", Transport: mem.New(nil)}
	layered := func(given *[]transport.Transport) channel.Factory { return layeredFactory{basic.New(), given} }
	undeclared := func(given *[]transport.Transport) channel.Factory {
		return struct{ channel.Factory }{layered(given)}
	}
	for name, c := range map[string]struct {
		channel    string
		factory    func(given *[]transport.Transport) channel.Factory
		transports []pipe.TransportEntry
		want       []transport.Transport
	}{
		"declared":             {"striped_own", layered, []pipe.TransportEntry{own}, []transport.Transport{own.Transport}},
		"of another transport": {"striped_uv", layered, []pipe.TransportEntry{own}, nil},
		"of no transport":      {"own", layered, []pipe.TransportEntry{own}, nil},
		"undeclared":           {"striped_own", undeclared, []pipe.TransportEntry{own}, nil},
		"profile's transports": {"striped_own", layered, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var given []transport.Transport
			p := tensorpipe.Profile{
				Transports: []pipe.TransportEntry{own},
				Channels:   []pipe.ChannelEntry{{Name: c.channel, Factory: c.factory(&given)}},
			}
			ctx, err := p.NewContext(pipe.Options{Transports: c.transports})
			require.NoError(t, err)
			require.NoError(t, ctx.Close())
			require.Equal(t, c.want, given)
		})
	}
}
