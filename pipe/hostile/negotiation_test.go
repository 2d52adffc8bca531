package hostile_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// TestNoCommonTransport checks that the handshake fails with ErrNoTransport if the client shares no
// transport with the victim. TensorPipe aborts the process in that case.
func TestNoCommonTransport(t *testing.T) {
	v := newVictim(t)
	for name, domains := range map[string]map[string]string{
		"none":              {},
		"another one":       {"shm": "shm:1_2", "tcp": "uv:*"},
		"in another domain": {"uv": "uv:elsewhere"},
		"without domain":    {"uv": ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := goodBrochure()
			b.TransportDomainDescriptors = domains
			r := v.dialRawWith(t, hello(), b.Append(nil))
			v.log.requireRejected(t, r.local(), pipe.ErrNoTransport)
			r.waitClosed()
			v.requireHealthy(t)
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// foreignChannels are brochures without a common channel.
var foreignChannels = map[string]map[string]map[device.Device]string{
	"none":               {},
	"another one":        {"warp": {device.CPU(): "any"}},
	"other text":         {basic.Name: {device.CPU(): "other"}},
	"without any device": {basic.Name: {}},
}

// TestNoCommonChannel checks that a pipe whose ends share no channel still carries payloads. Write
// rejects a tensor, and a tensor that the peer announces breaks the pipe.
func TestNoCommonChannel(t *testing.T) {
	v := newVictim(t)
	for name, offers := range foreignChannels {
		t.Run("brochure: "+name, func(t *testing.T) {
			b := goodBrochure()
			b.ChannelDeviceDescriptors = offers
			a := dialVictimWith(t, v, b)
			require.Nil(t, a.basic)
			requireOnlyPayloads(t, a)
			v.requireHealthy(t)
		})
	}
	t.Run("answer", func(t *testing.T) {
		l := newRogueListener(t)
		result := l.dialFrom(v)
		a := &attack{desc: l.acceptOffer()}
		answer := goodAnswer(l.Addr().String())
		answer.ChannelForDevicePair, answer.ChannelRegistrationIDs = nil, nil
		a.desc.frame(answer.Append(nil))
		a.reply = l.acceptRaw()
		a.reply.read()
		d := <-result
		require.NoError(t, d.err)
		a.pipe = d.pipe
		requireOnlyPayloads(t, a)
		v.requireHealthy(t)
	})
	v.requireIdle(t)
	v.requireServing(t)
}

func requireOnlyPayloads(t *testing.T, a *attack) {
	require.Empty(t, a.pipe.Plan().Channels)
	exchangePayload(t, a)

	tensor := pipe.Tensor{Buffer: device.Bytes(make([]byte, 8))}
	for _, target := range []device.Device{{}, device.CPU()} {
		tensor.TargetDevice = target
		err := a.pipe.Write(t.Context(), &pipe.Message{Tensors: []pipe.Tensor{tensor}})
		requireError(t, err, "", pipe.ErrMessage, pipe.ErrNoChannel)
	}
	exchangePayload(t, a)

	a.desc.frame(tensorDescriptor(8))
	requireBroken(t, a.pipe, "descriptor", pipe.ErrProtocol, pipe.ErrNoChannel)
}

// exchangePayload sends a message with a small payload in each direction of the attack's pipe, and
// requires that both arrive.
func exchangePayload(t testing.TB, a *attack) {
	t.Helper()
	a.desc.frame(payloadDescriptor(2))
	a.desc.frame([]byte("hi"))
	in, err := a.pipe.Next(t.Context())
	require.NoError(t, err)
	alloc := pipe.NewAllocation(in.Descriptor())
	require.NoError(t, in.Read(t.Context(), alloc))
	require.Equal(t, "hi", string(alloc.Payloads[0]))

	m := &pipe.Message{Payloads: []pipe.Payload{{Data: []byte("well")}}}
	require.NoError(t, a.pipe.Write(t.Context(), m))
	require.Equal(t, payloadDescriptor(4), a.desc.read())
	require.Equal(t, "well", string(a.desc.read()))
}

// TestTensorForOtherDevices checks that a peer that announces a tensor for devices that no channel
// joins breaks its pipe with ErrProtocol and ErrNoChannel, even if other devices have a channel.
func TestTensorForOtherDevices(t *testing.T) {
	cpu, gpu := device.CPU(), device.Device{Kind: "cuda"}
	pairs := map[string]wire.TensorDescriptor{
		"from an unknown device":                 {SourceDevice: gpu, TargetDevice: cpu},
		"from an unknown device, without target": {SourceDevice: gpu},
		"to an unknown device":                   {SourceDevice: cpu, TargetDevice: gpu},
		"to a CPU with a high index":             {SourceDevice: cpu, TargetDevice: device.Device{Kind: "cpu", Index: 1<<31 - 1}},
	}
	inBothRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		for name, tensor := range pairs {
			for _, tensor.Length = range []uint64{0, 8} {
				t.Run(name, func(t *testing.T) {
					a := open(t)
					good := wire.TensorDescriptor{SourceDevice: cpu, TargetDevice: cpu}
					d := wire.Descriptor{Tensors: []wire.TensorDescriptor{good, tensor}}
					a.desc.frame(d.Append(nil))
					requireBroken(t, a.pipe, "descriptor", pipe.ErrProtocol, pipe.ErrNoChannel)
					v.requireHealthy(t)
				})
			}
		}
	})
}
