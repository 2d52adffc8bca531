package pipe_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
	"github.com/tensorpipe-go/tensorpipe/transport/mem"
)

// moodyOn is a context on a network with a channel that has to be tried.
func moodyOn(t *testing.T, network *mem.Network, fault error) *pipe.Context {
	return newContext(t, nativePath(), with(newMoody("moody", fault)), func(o *pipe.Options) {
		o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}}
	})
}

// moodyDescriptors is what the ends of this process say of that channel.
func moodyDescriptors() map[device.Device]string {
	return newMoody("", nil).DeviceDescriptors()
}

var nativeMarker = wire.Marker{MinVersion: wire.VersionNative, MaxVersion: wire.VersionNative}

// A verdict that is none fails that handshake, and the listener goes on.
func TestHostileVerdicts(t *testing.T) {
	network := mem.NewNetwork()
	b := moodyOn(t, network, nil)
	l, err := b.Listen(testContext(t), "mem://moody")
	require.NoError(t, err)
	for name, verdict := range map[string][]byte{
		"too long":     make([]byte, wire.MaxVerdict+1),
		"refusal":      []byte("no\n\x00thing"),
		"end of it":    nil, // closed without a word
		"largest text": make([]byte, wire.MaxVerdict),
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := mem.New(network).Dial(testContext(t), "moody")
			require.NoError(t, err)
			brochure := wire.Brochure{
				TransportDomainDescriptors: map[string]string{"mem": mem.New(network).DomainDescriptor()},
				ChannelDeviceDescriptors:   map[string]map[device.Device]string{"moody": moodyDescriptors()},
			}
			brochure.Mark(nativeMarker)
			brochure.AddProbing(wire.Probing{Offers: map[string][]byte{"moody": {1}, "unheard of": {2}}})
			hello := wire.SpontaneousConnection{ContextName: "hostile"}
			require.NoError(t, conn.WriteFrames(transport.Frame{hello.Append(nil)}, transport.Frame{brochure.Append(nil)}))
			answer, err := wire.DecodeBrochureAnswer(nextFrame(t, conn), wire.Limits{})
			require.NoError(t, err)
			require.Equal(t, map[string][]byte{"moody": []byte("moody, answering \x01")}, answer.Probing().Offers)
			if verdict == nil {
				require.NoError(t, conn.Close())
				return
			}
			_ = conn.WriteFrames(transport.Frame{verdict}) // the listener may hang up first
			_, err = conn.NextFrame()
			require.Error(t, err)
			require.NoError(t, conn.Close())
		})
	}
	client, err := moodyOn(t, network, nil).Dial(testContext(t), l.URLs()[0])
	require.NoError(t, err)
	server, err := l.Accept(testContext(t))
	require.NoError(t, err, "and not one of those that were begun before")
	require.Equal(t, "test", server.Peer())
	exchange(t, client, server, message(1, nil, []int{200_000}))
}

// A listener that insists on a channel that the dialling end has given up is told
// so, once.
func TestListenerInsistsOnAChannel(t *testing.T) {
	network := mem.NewNetwork()
	l, err := mem.New(network).Listen(testContext(t), "insists")
	require.NoError(t, err)
	defer l.Close()
	a := moodyOn(t, network, errors.New("it is forbidden"))
	dialled := make(chan error, 1)
	go func() {
		_, err := a.Dial(testContext(t), "mem://insists")
		dialled <- err
	}()
	for round := range 2 {
		conn, err := l.Accept(testContext(t))
		require.NoError(t, err)
		nextFrame(t, conn)
		brochure, err := wire.DecodeBrochure(nextFrame(t, conn), wire.Limits{})
		require.NoError(t, err)
		_, offered := brochure.ChannelDeviceDescriptors["moody"]
		require.Equal(t, round == 0, offered)
		require.Equal(t, round == 1, brochure.Probing().Refused["moody"] == "it is forbidden")
		answer := insistingAnswer(network)
		require.NoError(t, conn.WriteFrames(transport.Frame{answer.Append(nil)}))
		if round == 0 {
			require.Equal(t, "channel moody: it is forbidden", string(nextFrame(t, conn)))
		}
		_, err = conn.NextFrame()
		require.Error(t, err)
		require.NoError(t, conn.Close())
	}
	require.ErrorIs(t, <-dialled, pipe.ErrProtocol)
}

func insistingAnswer(network *mem.Network) *wire.BrochureAnswer {
	cpu := device.CPU()
	answer := &wire.BrochureAnswer{
		Transport:                 "mem",
		Address:                   "insists",
		TransportRegistrationIDs:  map[uint64]uint64{wire.BulkConnection: 1},
		TransportDomainDescriptor: mem.New(network).DomainDescriptor(),
		ChannelRegistrationIDs:    map[string][]uint64{"moody": {}},
		ChannelDeviceDescriptors:  map[string]map[device.Device]string{"moody": moodyDescriptors()},
		ChannelForDevicePair:      map[wire.DevicePair]string{{Server: cpu, Client: cpu}: "moody"},
	}
	answer.Mark(nativeMarker)
	answer.AddProbing(wire.Probing{Offers: map[string][]byte{"moody": {1}}})
	return answer
}

func nextFrame(t *testing.T, c transport.Conn) []byte {
	t.Helper()
	n, err := c.NextFrame()
	require.NoError(t, err)
	p := make([]byte, n)
	require.NoError(t, c.ReadBody(p))
	return p
}
