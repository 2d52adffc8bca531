package wire

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
)

func TestErrorsNameTheMember(t *testing.T) {
	cases := []struct{ name, kind, frame, want string }{
		{"nothing", "Packet", "", "wire: Packet: nop: byte 0: want a value, nothing left"},
		{"empty variant", "Packet", "b8 ff be", "wire: Packet: nop: byte 2: unknown alternative -1"},
		{"unknown variant", "Packet", "b8 02 b9 00", "wire: Packet: nop: byte 2: unknown alternative 2"},
		{"signed id", "Packet", "b8 01 b9 01 ff", "wire: Packet.RequestedConnection: nop: byte 4: want an unsigned integer"},
		{"unknown hello", "MPTHello", "b8 02 b9 00", "wire: MPTHello: nop: byte 2: unknown alternative 2"},
		{"lanes", "MPTHello", "b8 00 b9 01 bc 00", "wire: MPTHello.ServerHello: nop: byte 4: want an array"},
		{"wide pid", "CMADescriptor", "b9 02 83 05 00 00 00 00 00 00 00 06", "wire: CMADescriptor.pid: nop: byte 2"},
		{"short handle", "CUDAIPCDescriptor", "b9 03 01 00 b9 03 bd 01 61 bd 02 01 02 ba 00", "wire: CUDAIPCDescriptor.outbox: nop: byte 13: a handle of 2 bytes, want 64"},
		{"ptr", "XTHDescriptor", "b9 01 bd 00", "wire: XTHDescriptor.ptr: nop: byte 2"},
		{"transports", "Brochure", "b9 02 ba 00", "wire: Brochure.transportDomainDescriptors: nop: byte 2"},
		{"transports that are not there", "Brochure", "b9 02 bb 82 ff ff ff ff bb 00",
			"wire: Brochure.transportDomainDescriptors: nop: byte 3: count of 4294967295 parts"},
		{"device without kind", "Brochure", "b9 02 bb 00 bb 01 bd 00 bb 01 b9 02 bd 00 00 bd 01 61",
			"wire: Brochure.channelDeviceDescriptors: nop: byte 14: device kind is empty"},
		{"odd ids", "BrochureAnswer", "b9 07 bd 00 bd 00 bb 00 bd 00 bb 01 bd 00 bc 01 00 bb 00 bb 00",
			"wire: BrochureAnswer.channelRegistrationIds: nop: byte 14: 1 bytes are no array of 64-bit integers"},
		{"triple for pair", "BrochureAnswer", "b9 07 bd 00 bd 00 bb 00 bd 00 bb 00 bb 00 bb 01 " +
			"ba 03 b9 02 bd 01 61 00 b9 02 bd 01 61 00 bd 00",
			"wire: BrochureAnswer.channelForDevicePair: nop: byte 16: want a pair of 2, got 3"},
		{"negative index", "DescriptorReply", "b9 01 ba 01 b9 02 bd 01 61 ff",
			"wire: DescriptorReply.targetDevices: nop: byte 10: device index -1 is negative"},
		{"wide index", "DescriptorReply", "b9 01 ba 01 b9 02 bd 01 61 87 05 00 00 00 00 00 00 00",
			"wire: DescriptorReply.targetDevices: nop: byte 9: want a signed integer"},
		{"payloads that are not there", "Descriptor", "b9 03 bd 00 ba 03 b9 02 00 bd 00 ba 00",
			"wire: Descriptor.payloads: nop: byte 5: count of 3 parts, the bytes left hold at most 1"},
		{"tensor without source", "Descriptor", "b9 03 bd 00 ba 00 ba 01 b9 04 00 be be bd 00 00 00 00 00 00 00",
			"wire: Descriptor.tensors: nop: byte 11: want a structure (b9), got be"},
		{"metadata", "Descriptor", "b9 03 be ba 00 ba 00", "wire: Descriptor.metadata: nop: byte 2: want a string"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := kinds[c.kind].decode(unhex(t, c.frame), Limits{})
			requireMalformed(t, err, c.kind)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestLimits(t *testing.T) {
	long := strings.Repeat("x", 41)
	lanes := MPTServerHello{make([]MPTLane, 3)}
	answer := &BrochureAnswer{ChannelRegistrationIDs: map[string][]uint64{"x": {1, 2, 3}}}
	cases := []struct {
		name, field string
		message     encodable
		low, enough Limits
	}{
		{"Packet", "SpontaneousConnection", SpontaneousConnection{long}, Limits{Text: 40}, Limits{Text: 41}},
		{"MPTHello", "ServerHello", lanes, Limits{Entries: 2}, Limits{Entries: 3}},
		{"Brochure", "transportDomainDescriptors", someBrochure(), Limits{Entries: 2}, Limits{Entries: 3}},
		{"Brochure", "transportDomainDescriptors", someBrochure(), Limits{Text: 4}, Limits{Text: 8}},
		{"BrochureAnswer", "channelRegistrationIds", answer, Limits{Entries: 2}, Limits{Entries: 3}},
		{"Descriptor", "payloads", &Descriptor{Payloads: make([]PayloadDescriptor, 2)}, Limits{Payloads: 1}, Limits{Payloads: 2}},
		{"Descriptor", "tensors", ordinary(), Limits{Tensors: 1}, Limits{Tensors: 2}},
		{"DescriptorReply", "targetDevices", &DescriptorReply{devices("a", "b")}, Limits{Tensors: 1}, Limits{Tensors: 2}},
		{"DescriptorReply", "targetDevices", &DescriptorReply{devices(long)}, Limits{Kind: 40}, Limits{Kind: 41}},
	}
	for _, c := range cases {
		p := c.message.Append(nil)
		_, err := kinds[c.name].decode(p, c.enough)
		require.NoError(t, err, c.name)

		_, err = kinds[c.name].decode(p, c.low)
		require.ErrorIs(t, err, ErrLimit)
		var typed *Error
		require.ErrorAs(t, err, &typed)
		require.Equal(t, c.name, typed.Message)
		require.Equal(t, c.field, typed.Field)
	}
}

func TestDefaultLimits(t *testing.T) {
	require.Equal(t, Limits{Frame: 7, Payloads: 1 << 16, Tensors: 1 << 16, Entries: 4096, Text: 4096, Kind: 64},
		Limits{Frame: 7}.WithDefaults())
	tooLong := &DescriptorReply{devices(strings.Repeat("x", 65))}
	_, err := kinds["DescriptorReply"].decode(tooLong.Append(nil), Limits{})
	require.ErrorIs(t, err, ErrLimit)
}

func TestCheckDevice(t *testing.T) {
	for _, d := range []device.Device{device.CPU(), {Kind: "cuda", Index: math.MaxInt32}, {Kind: strings.Repeat("x", 64)}} {
		require.NoError(t, Limits{}.CheckDevice(d))
		_, err := kinds["DescriptorReply"].decode((&DescriptorReply{[]device.Device{d}}).Append(nil), Limits{})
		require.NoError(t, err)
	}
	require.ErrorContains(t, Limits{}.CheckDevice(device.Device{Index: 3}), "device 3 has no kind")
	require.ErrorContains(t, Limits{}.CheckDevice(device.Device{Kind: "cuda", Index: -1}), "cuda:-1")
	tooBig := math.MaxInt32
	tooBig++ // negative where int has 32 bits
	require.Error(t, Limits{}.CheckDevice(device.Device{Kind: "cuda", Index: tooBig}))
	require.ErrorIs(t, Limits{}.CheckDevice(device.Device{Kind: strings.Repeat("x", 65)}), ErrLimit)
	require.ErrorIs(t, Limits{Kind: 2}.CheckDevice(device.CPU()), ErrLimit)
}

// TestAppendOfAnImpossibleDevice checks that Append, which cannot return an error, panics with the
// build tag invariants for a device that CheckDevice rejects. Without the tag it encodes a message
// that cannot be decoded.
func TestAppendOfAnImpossibleDevice(t *testing.T) {
	m := DescriptorReply{[]device.Device{{Kind: "cuda", Index: -1}}}
	if invariants.Enabled {
		require.Panics(t, func() { m.Append(nil) })
		return
	}
	_, err := kinds["DescriptorReply"].decode(m.Append(nil), Limits{})
	require.Error(t, err)
}
