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

// probedOn returns a context on network with a channel "probed", which must be probed and is the
// best one. fault is the result of its probe; nil means success.
func probedOn(t *testing.T, network *mem.Network, fault error) *pipe.Context {
	return newContext(t, nativePath(), with(newProbed("probed", fault)), func(o *pipe.Options) {
		o.Transports = []pipe.TransportEntry{{Name: "mem", Transport: mem.New(network)}}
	})
}

// probedDescriptors returns the device descriptors of the channel that probedOn adds.
func probedDescriptors() map[device.Device]string {
	return newProbed("", nil).DeviceDescriptors()
}

var nativeMarker = wire.Marker{MinVersion: wire.VersionNative, MaxVersion: wire.VersionNative}

// TestHostileProbeResults checks that a client that sends an invalid probe result, a failure or
// none fails only its own handshake: an honest client can then open and use a pipe.
func TestHostileProbeResults(t *testing.T) {
	network := mem.NewNetwork()
	b := probedOn(t, network, nil)
	l, err := b.Listen(testContext(t), "mem://probed")
	require.NoError(t, err)
	for name, result := range map[string][]byte{
		"too long":     make([]byte, wire.MaxRejection+1),
		"failure":      []byte("no\n\x00thing"),
		"no result":    nil, // the connection is closed
		"largest text": make([]byte, wire.MaxRejection),
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := mem.New(network).Dial(testContext(t), "probed")
			require.NoError(t, err)
			brochure := wire.Brochure{
				TransportDomainDescriptors: map[string]string{"mem": mem.New(network).DomainDescriptor()},
				ChannelDeviceDescriptors:   map[string]map[device.Device]string{"probed": probedDescriptors()},
			}
			brochure.Mark(nativeMarker)
			brochure.AddProbing(wire.Probing{Offers: map[string][]byte{"probed": {1}, "unknown": {2}}})
			hello := wire.SpontaneousConnection{ContextName: "hostile"}
			require.NoError(t, conn.WriteFrames(transport.Frame{hello.Append(nil)}, transport.Frame{brochure.Append(nil)}))
			answer, err := wire.DecodeBrochureAnswer(nextFrame(t, conn), wire.Limits{})
			require.NoError(t, err)
			require.Equal(t, map[string][]byte{"probed": []byte("probed, answering \x01")}, answer.Probing().Offers)
			if result == nil {
				require.NoError(t, conn.Close())
				return
			}
			_ = conn.WriteFrames(transport.Frame{result}) // the server may close the connection first
			_, err = conn.NextFrame()
			require.Error(t, err)
			require.NoError(t, conn.Close())
		})
	}
	client, err := probedOn(t, network, nil).Dial(testContext(t), l.URLs()[0])
	require.NoError(t, err)
	server, err := l.Accept(testContext(t))
	require.NoError(t, err, "not a pipe of a failed handshake")
	require.Equal(t, "test", server.Peer())
	exchange(t, client, server, message(1, nil, []int{200_000}))
}

// TestServerChoosesExcludedChannel checks that Dial fails with ErrProtocol if the server again
// chooses a channel that the client has excluded after a failed probe.
func TestServerChoosesExcludedChannel(t *testing.T) {
	network := mem.NewNetwork()
	l, err := mem.New(network).Listen(testContext(t), "server")
	require.NoError(t, err)
	defer l.Close()
	a := probedOn(t, network, errors.New("it is forbidden"))
	dialled := make(chan error, 1)
	go func() {
		_, err := a.Dial(testContext(t), "mem://server")
		dialled <- err
	}()
	for round := range 2 {
		conn, err := l.Accept(testContext(t))
		require.NoError(t, err)
		nextFrame(t, conn)
		brochure, err := wire.DecodeBrochure(nextFrame(t, conn), wire.Limits{})
		require.NoError(t, err)
		_, offered := brochure.ChannelDeviceDescriptors["probed"]
		require.Equal(t, round == 0, offered)
		require.Equal(t, round == 1, brochure.Probing().Refused["probed"] == "it is forbidden")
		answer := answerWithProbed(network)
		require.NoError(t, conn.WriteFrames(transport.Frame{answer.Append(nil)}))
		if round == 0 {
			require.Equal(t, "channel probed: it is forbidden", string(nextFrame(t, conn)))
		}
		_, err = conn.NextFrame()
		require.Error(t, err)
		require.NoError(t, conn.Close())
	}
	require.ErrorIs(t, <-dialled, pipe.ErrProtocol)
}

func answerWithProbed(network *mem.Network) *wire.BrochureAnswer {
	cpu := device.CPU()
	answer := &wire.BrochureAnswer{
		Transport:                 "mem",
		Address:                   "server",
		TransportRegistrationIDs:  map[uint64]uint64{wire.BulkConnection: 1},
		TransportDomainDescriptor: mem.New(network).DomainDescriptor(),
		ChannelRegistrationIDs:    map[string][]uint64{"probed": {}},
		ChannelDeviceDescriptors:  map[string]map[device.Device]string{"probed": probedDescriptors()},
		ChannelForDevicePair:      map[wire.DevicePair]string{{Server: cpu, Client: cpu}: "probed"},
	}
	answer.Mark(nativeMarker)
	answer.AddProbing(wire.Probing{Offers: map[string][]byte{"probed": {1}}})
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
