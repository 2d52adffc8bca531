package hostile_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// What makes a TensorPipe process abort: nothing in common to talk over.
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
			r := v.visitWith(t, hello(), b.Append(nil))
			v.log.requireRefused(t, r.local(), pipe.ErrNoTransport)
			r.ended()
			v.unharmed(t)
		})
	}
	v.quiet(t)
	v.alive(t)
}

// foreignChannels are brochures in which the victim finds no channel.
var foreignChannels = map[string]map[string]map[device.Device]string{
	"none":               {},
	"another one":        {"warp": {device.CPU(): "any"}},
	"other text":         {basic.Name: {device.CPU(): "other"}},
	"without any device": {basic.Name: {}},
}

// Without a common channel payloads still work. A tensor is refused where the
// user hands it over, and breaks the pipe where the peer announces one.
func TestNoCommonChannel(t *testing.T) {
	v := newVictim(t)
	for name, offers := range foreignChannels {
		t.Run("brochure: "+name, func(t *testing.T) {
			b := goodBrochure()
			b.ChannelDeviceDescriptors = offers
			a := dialVictimWith(t, v, b)
			require.Nil(t, a.basic)
			onlyPayloads(t, a)
			v.unharmed(t)
		})
	}
	t.Run("answer", func(t *testing.T) {
		l := newTrap(t)
		result := l.lure(v)
		a := &attack{desc: l.prey()}
		answer := goodAnswer(l.Addr().String())
		answer.ChannelForDevicePair, answer.ChannelRegistrationIDs = nil, nil
		a.desc.frame(answer.Append(nil))
		a.reply = l.take()
		a.reply.read()
		d := <-result
		require.NoError(t, d.err)
		a.pipe = d.pipe
		onlyPayloads(t, a)
		v.unharmed(t)
	})
	v.quiet(t)
	v.alive(t)
}

func onlyPayloads(t *testing.T, a *attack) {
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

// exchangePayload shows that an attacker's pipe still works, both ways.
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

// Devices that no channel serves, although the pipe has one for others.
func TestTensorForOtherDevices(t *testing.T) {
	cpu, gpu := device.CPU(), device.Device{Kind: "cuda"}
	pairs := map[string]wire.TensorDescriptor{
		"from an unknown device":         {SourceDevice: gpu, TargetDevice: cpu},
		"from anywhere, to our choice":   {SourceDevice: gpu},
		"to an unknown device":           {SourceDevice: cpu, TargetDevice: gpu},
		"to a processor that is not one": {SourceDevice: cpu, TargetDevice: device.Device{Kind: "cpu", Index: 1<<31 - 1}},
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
					v.unharmed(t)
				})
			}
		}
	})
}
