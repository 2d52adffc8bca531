package hostile_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/race"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// A peer with as many devices as it may have, and a message with as many
// tensors: the work must not be the product of the two.
func TestCrowdOfDevices(t *testing.T) {
	devices, tensors := race.Pick(4000, 1000), race.Pick(1<<16, 1<<13)
	from := func(i int) device.Device { return device.Device{Kind: "cpu", Index: i % devices} }
	b := goodBrochure()
	for i := range devices {
		b.ChannelDeviceDescriptors[basic.Name][from(i)] = "any"
	}
	v := newVictim(t)
	a := dialVictimWith(t, v, b)
	require.Len(t, a.pipe.Plan().Channels, devices)

	var d wire.Descriptor
	for i := range tensors {
		d.Tensors = append(d.Tensors, wire.TensorDescriptor{SourceDevice: from(i)})
	}
	a.desc.frame(d.Append(nil))
	in, err := a.pipe.Next(t.Context())
	require.NoError(t, err)
	require.Len(t, in.Descriptor().Tensors, tensors)
	discarded := make(chan error, 1)
	go func() { discarded <- in.Discard(t.Context()) }()
	var reply wire.DescriptorReply
	require.NoError(t, wire.DecodeDescriptorReply(a.reply.read(), wire.Limits{}, &reply))
	require.Len(t, reply.TargetDevices, tensors)
	require.NoError(t, <-discarded)

	d.Tensors = []wire.TensorDescriptor{{SourceDevice: device.Device{Kind: "cpu", Index: devices}}}
	a.desc.frame(d.Append(nil))
	requireBroken(t, a.pipe, "descriptor", pipe.ErrProtocol, pipe.ErrNoChannel)
	v.quiet(t)
}
