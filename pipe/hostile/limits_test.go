package hostile_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/channel/basic"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/race"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// The default limits of pipe.Limits.
const (
	handshakeLimit  = 256 << 10
	descriptorLimit = 4 << 20
	payloadLimit    = 4 << 30
	tensorLimit     = 64 << 30
)

// tooLong returns lengths that exceed the given limit of a frame, each with the error with which
// the victim must fail.
func tooLong(limit uint64) map[uint64]error {
	return map[uint64]error{
		limit + 1: pipe.ErrLimit,
		1 << 62:   pipe.ErrLimit,
		1<<63 - 1: pipe.ErrLimit,
		1 << 63:   transport.ErrFrame,
		1<<64 - 1: transport.ErrFrame,
	}
}

func TestLengthOfHandshakeFrames(t *testing.T) {
	v := newVictim(t)
	for size, reason := range tooLong(handshakeLimit) {
		t.Run(fmt.Sprintf("first packet of %d", size), func(t *testing.T) {
			r := v.dialRaw(t)
			r.header(size)
			v.log.requireRejected(t, r.local(), pipe.ErrProtocol, reason)
			r.waitClosed()
		})
		t.Run(fmt.Sprintf("brochure of %d", size), func(t *testing.T) {
			r := v.dialRawWith(t, hello())
			r.header(size)
			v.log.requireRejected(t, r.local(), pipe.ErrProtocol, reason)
			r.waitClosed()
		})
		t.Run(fmt.Sprintf("answer of %d", size), func(t *testing.T) {
			l := newRogueListener(t)
			result := l.dialFrom(v)
			first := l.acceptOffer()
			first.header(size)
			requireDialFailed(t, l, <-result, pipe.ErrProtocol, reason)
			first.waitClosed()
		})
		v.requireHealthy(t)
	}
	v.requireIdle(t)
	v.requireServing(t)
}

func TestLengthOfPipeFrames(t *testing.T) {
	inBothRoles(t, lengthOfPipeFrames)
}

func lengthOfPipeFrames(t *testing.T, v *victim, open func(testing.TB) *attack) {
	for _, conn := range []string{"descriptor", "reply"} {
		for size, reason := range tooLong(descriptorLimit) {
			t.Run(fmt.Sprintf("%s of %d", conn, size), func(t *testing.T) {
				a := open(t)
				a.conn(conn).header(size)
				requireBroken(t, a.pipe, conn, pipe.ErrProtocol, reason)
				v.requireHealthy(t)
			})
		}
	}
}

// TestLengthOfChannelFrames checks that a length that no frame can have breaks the channel at once,
// and that any other wrong length breaks it when a descriptor announces the tensor.
func TestLengthOfChannelFrames(t *testing.T) {
	inBothRoles(t, lengthOfChannelFrames)
}

func lengthOfChannelFrames(t *testing.T, v *victim, open func(testing.TB) *attack) {
	for _, size := range []uint64{1 << 63, 1<<64 - 1} {
		t.Run(fmt.Sprintf("%d at once", size), func(t *testing.T) {
			a := open(t)
			a.basic.header(size)
			requireBroken(t, a.pipe, "channel basic", pipe.ErrProtocol, transport.ErrFrame)
			v.requireHealthy(t)
		})
	}
	for _, size := range []uint64{0, 7, 9, tensorLimit + 1, 1 << 62, 1<<63 - 1} {
		t.Run(fmt.Sprintf("%d for a tensor of 8", size), func(t *testing.T) {
			a := open(t)
			in := a.announceTensor()
			a.basic.header(size)
			requireReadFails(t, in, "channel basic", pipe.ErrProtocol)
			requireBroken(t, a.pipe, "channel basic", pipe.ErrProtocol)
			v.requireHealthy(t)
		})
	}
}

// announceTensor sends the victim the descriptor of a message with a tensor of 8 bytes, but not the
// tensor, and returns the message as the victim has received it.
func (a *attack) announceTensor() *pipe.Incoming {
	a.desc.t.Helper()
	a.desc.frame(tensorDescriptor(8))
	in, err := a.pipe.Next(a.desc.t.Context())
	require.NoError(a.desc.t, err)
	return in
}

// requireReadFails calls Read of one message and requires that it fails on the connection named
// conn, with an error that matches reasons.
func requireReadFails(t testing.TB, in *pipe.Incoming, conn string, reasons ...error) {
	t.Helper()
	requireError(t, in.Read(t.Context(), pipe.NewAllocation(in.Descriptor())), conn, reasons...)
}

func tensorDescriptor(lengths ...uint64) []byte {
	d := wire.Descriptor{}
	for _, n := range lengths {
		d.Tensors = append(d.Tensors, wire.TensorDescriptor{Length: n, SourceDevice: device.CPU(), TargetDevice: device.CPU()})
	}
	return d.Append(nil)
}

func payloadDescriptor(lengths ...uint64) []byte {
	d := wire.Descriptor{}
	for _, n := range lengths {
		d.Payloads = append(d.Payloads, wire.PayloadDescriptor{Length: n})
	}
	return d.Append(nil)
}

// TestClaimsBeyondLimits checks that a descriptor with sizes or counts beyond the limits breaks the
// pipe with ErrProtocol and the error of the limit.
func TestClaimsBeyondLimits(t *testing.T) {
	zeros := func(n int) []uint64 { return make([]uint64, n) }
	claims := map[string]struct {
		descriptor []byte
		reason     error
	}{
		"payload one byte too long":  {payloadDescriptor(payloadLimit + 1), pipe.ErrLimit},
		"payload of 2^63":            {payloadDescriptor(1 << 63), pipe.ErrLimit},
		"payload of 2^64-1":          {payloadDescriptor(1, 1<<64-1), pipe.ErrLimit},
		"tensor one byte too long":   {tensorDescriptor(tensorLimit + 1), pipe.ErrLimit},
		"tensor of 2^63":             {tensorDescriptor(1 << 63), pipe.ErrLimit},
		"tensor of 2^64-1":           {tensorDescriptor(0, 1<<64-1), pipe.ErrLimit},
		"a payload too many":         {payloadDescriptor(zeros(1<<16 + 1)...), wire.ErrLimit},
		"a tensor too many":          {tensorDescriptor(zeros(1<<16 + 1)...), wire.ErrLimit},
		"2^32 payloads in few bytes": {[]byte("\xb9\x03\xbd\x00\xba\x83\x00\x00\x00\x00\x01\x00\x00\x00\xba\x00"), pipe.ErrProtocol},
		"2^32-1 tensors, few bytes":  {[]byte("\xb9\x03\xbd\x00\xba\x00\xba\x82\xff\xff\xff\xff"), pipe.ErrProtocol},
		"2^64-1 bytes of metadata":   {[]byte("\xb9\x03\xbd\x83\xff\xff\xff\xff\xff\xff\xff\xff\xba\x00\xba\x00"), pipe.ErrProtocol},
	}
	inBothRoles(t, func(t *testing.T, v *victim, open func(testing.TB) *attack) {
		for name, claim := range claims {
			t.Run(name, func(t *testing.T) {
				a := open(t)
				a.desc.frame(claim.descriptor)
				requireBroken(t, a.pipe, "descriptor", pipe.ErrProtocol, claim.reason)
				v.requireHealthy(t)
			})
		}
	})
}

// TestCountsInHandshake checks that a handshake fails with ErrProtocol if a message claims more
// entries than it has bytes for or than the limits allow.
func TestCountsInHandshake(t *testing.T) {
	huge := "\xbb\x83\xff\xff\xff\xff\xff\xff\xff\x7f"
	offer := goodBrochure()
	for i := range 5000 {
		offer.TransportDomainDescriptors[fmt.Sprint(i)] = ""
	}
	brochures := map[string][]byte{
		"transports": []byte("\xb9\x02" + huge),
		"channels":   []byte("\xb9\x02\xbb\x00" + huge),
		"devices":    []byte("\xb9\x02\xbb\x00\xbb\x01\xbd\x05basic" + huge),
		"entries":    offer.Append(nil),
	}
	v := newVictim(t)
	for name, bad := range brochures {
		t.Run("brochure: "+name, func(t *testing.T) {
			r := v.dialRawWith(t, hello(), bad)
			v.log.requireRejected(t, r.local(), pipe.ErrProtocol)
			r.waitClosed()
			v.requireHealthy(t)
		})
	}
	ids := "\xbc\x83\xf8\xff\xff\xff\xff\xff\xff\x7f"
	head := "\xb9\x07\xbd\x02uv\xbd\x00"
	answers := map[string]string{
		"registration ids": head + huge,
		"channels":         head + "\xbb\x00\xbd\x04uv:*" + huge,
		"ids of a channel": head + "\xbb\x00\xbd\x04uv:*\xbb\x01\xbd\x05basic" + ids,
		"device pairs":     head + "\xbb\x00\xbd\x04uv:*\xbb\x00\xbb\x00" + huge,
	}
	for name, bad := range answers {
		t.Run("answer: "+name, func(t *testing.T) {
			l := newRogueListener(t)
			result := l.dialFrom(v)
			l.acceptOffer().frame([]byte(bad))
			requireDialFailed(t, l, <-result, pipe.ErrProtocol)
			v.requireHealthy(t)
		})
	}
	v.requireIdle(t)
	v.requireServing(t)
}

// TestManyDevicesAndTensors checks that a peer can announce the maximum number of tensors from the
// maximum number of devices. The work must not be proportional to the product of both numbers, or
// the test would time out.
func TestManyDevicesAndTensors(t *testing.T) {
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
	v.requireIdle(t)
}
