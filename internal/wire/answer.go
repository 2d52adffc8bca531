package wire

import (
	"cmp"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/nop"
)

// BrochureAnswer is the server's choice: what both ends will use from now on,
// and which connections the client has to open for it.
type BrochureAnswer struct {
	// Transport is the chosen transport and Address where the server listens
	// on it. All connections still to come go there.
	Transport string
	Address   string

	// TransportRegistrationIDs are the ids of the pipe's own connections,
	// under the keys [DescriptorConnection] and [ReplyConnection].
	TransportRegistrationIDs map[uint64]uint64

	// TransportDomainDescriptor is the server's for the chosen transport.
	TransportDomainDescriptor string

	// ChannelRegistrationIDs are the ids of the connections of each chosen
	// channel, in the channel's order.
	ChannelRegistrationIDs map[string][]uint64

	// ChannelDeviceDescriptors are all that the server has for each chosen
	// channel.
	ChannelDeviceDescriptors map[string]map[device.Device]string

	// ChannelForDevicePair names the channel for each pair of devices that
	// can exchange tensors. The client must come to the same result.
	ChannelForDevicePair map[DevicePair]string
}

// Keys of TransportRegistrationIDs.
const (
	// DescriptorConnection is present only if the chosen transport is not the
	// one on which the pipe was opened.
	DescriptorConnection uint64 = 0

	// ReplyConnection is always present.
	ReplyConnection uint64 = 1
)

// DevicePair is one device at each end of a pipe.
type DevicePair struct {
	Server, Client device.Device
}

// Append appends the encoded message to dst.
func (m *BrochureAnswer) Append(dst []byte) []byte {
	dst = nop.AppendStructHeader(dst, 7)
	dst = nop.AppendString(nop.AppendString(dst, m.Transport), m.Address)
	dst = appendMap(dst, m.TransportRegistrationIDs, cmp.Compare, nop.AppendUint, nop.AppendUint)
	dst = nop.AppendString(dst, m.TransportDomainDescriptor)
	dst = appendMap(dst, m.ChannelRegistrationIDs, strings.Compare, nop.AppendString, nop.AppendUint64s)
	dst = appendChannelDevices(dst, m.ChannelDeviceDescriptors)
	return appendMap(dst, m.ChannelForDevicePair, comparePairs, appendPair, nop.AppendString)
}

// DecodeBrochureAnswer decodes a BrochureAnswer from the whole of p.
func DecodeBrochureAnswer(p []byte, limits Limits) (*BrochureAnswer, error) {
	r := newReader("BrochureAnswer", p, limits)
	r.Struct(7)
	m := new(BrochureAnswer)
	r.at("transport")
	m.Transport = r.text()
	r.at("address")
	m.Address = r.text()
	r.at("transportRegistrationIds")
	m.TransportRegistrationIDs = readMap(&r, minUintUint, (*reader).uint, (*reader).uint)
	r.at("transportDomainDescriptor")
	m.TransportDomainDescriptor = r.text()
	r.at("channelRegistrationIds")
	m.ChannelRegistrationIDs = readMap(&r, minTextUints, (*reader).text, (*reader).uints)
	r.at("channelDeviceDescriptors")
	m.ChannelDeviceDescriptors = r.channelDevices()
	r.at("channelForDevicePair")
	m.ChannelForDevicePair = readMap(&r, minPairText, (*reader).pair, (*reader).text)
	return result(&r, m)
}

func (r *reader) uint() uint64 { return r.Uint64() }

// uints reads the ids of a channel's connections.
func (r *reader) uints() []uint64 {
	ids := r.Uint64s(nil)
	if !r.within(int64(len(ids)), int64(r.limits.Entries), "elements") {
		return nil
	}
	return ids
}

func (r *reader) pair() DevicePair {
	r.Pair()
	return DevicePair{Server: r.newDevice(), Client: r.newDevice()}
}

func appendPair(dst []byte, p DevicePair) []byte {
	return appendDevice(appendDevice(nop.AppendPairHeader(dst), p.Server), p.Client)
}

func comparePairs(a, b DevicePair) int {
	return cmp.Or(compareDevices(a.Server, b.Server), compareDevices(a.Client, b.Client))
}
