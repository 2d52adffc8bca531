package wire

import (
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/nop"
)

// DescriptorReply is the receiver's answer to a [Descriptor] that left target
// devices open: one device for each tensor without, in their order. There is
// one reply for each such message, in the order of the messages, and none for
// others.
type DescriptorReply struct {
	TargetDevices []device.Device
}

// Append appends the encoded message to dst.
func (m *DescriptorReply) Append(dst []byte) []byte {
	dst = nop.AppendArrayHeader(nop.AppendStructHeader(dst, 1), len(m.TargetDevices))
	for _, d := range m.TargetDevices {
		dst = appendDevice(dst, d)
	}
	return dst
}

// DecodeDescriptorReply decodes a DescriptorReply from the whole of p into
// into, whose slice it reuses. After an error the contents of into mean
// nothing, yet it can be decoded into again.
func DecodeDescriptorReply(p []byte, limits Limits, into *DescriptorReply) error {
	r := newReader("DescriptorReply", p, limits)
	r.Struct(1)
	r.at("targetDevices")
	into.TargetDevices = resize(into.TargetDevices, r.list(minDevice, r.limits.Tensors))
	for i := range into.TargetDevices {
		into.TargetDevices[i] = r.device(into.TargetDevices[i])
	}
	return r.end()
}
