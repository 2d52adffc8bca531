package wire

import (
	"cmp"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/nop"
)

// Packet is the first message on every connection to the listener of pipes, and states the purpose
// of the connection. It is either a [SpontaneousConnection] or a [RequestedConnection]. Lanes of
// the channel mpt begin with an [MPTClientHello] instead.
type Packet interface {
	// Append appends the encoded message to dst and returns the extended slice.
	Append(dst []byte) []byte

	packet()
}

// The alternatives of a Packet.
const (
	spontaneousConnection = 0
	requestedConnection   = 1
)

// SpontaneousConnection opens a pipe: a [Brochure] follows on the same connection.
type SpontaneousConnection struct {
	ContextName string // the client's own name, for messages to users only
}

// RequestedConnection is the first message of a connection that the client opens because the server
// has requested it. It identifies the connection to the server.
type RequestedConnection struct {
	RegistrationID uint64 // from the BrochureAnswer
}

func (SpontaneousConnection) packet() {}
func (RequestedConnection) packet()   {}

// Append appends the encoding of m to dst and returns the extended slice.
func (m SpontaneousConnection) Append(dst []byte) []byte {
	dst = nop.AppendStructHeader(nop.AppendVariantHeader(dst, spontaneousConnection), 1)
	return nop.AppendString(dst, m.ContextName)
}

// Append appends the encoding of m to dst and returns the extended slice.
func (m RequestedConnection) Append(dst []byte) []byte {
	dst = nop.AppendStructHeader(nop.AppendVariantHeader(dst, requestedConnection), 1)
	return nop.AppendUint(dst, m.RegistrationID)
}

// DecodePacket decodes a Packet, which must be the whole of p. The result is a
// SpontaneousConnection or a RequestedConnection and does not alias p. If p is invalid or exceeds
// limits, the error is an [*Error] and the result is nil.
func DecodePacket(p []byte, limits Limits) (Packet, error) {
	r := newReader("Packet", p, limits)
	return result(&r, r.packet())
}

func (r *reader) packet() Packet {
	switch index := r.Variant(); index {
	case spontaneousConnection:
		r.at("SpontaneousConnection")
		r.Struct(1)
		return SpontaneousConnection{ContextName: r.text()}
	case requestedConnection:
		r.at("RequestedConnection")
		r.Struct(1)
		return RequestedConnection{RegistrationID: r.Uint64()}
	default:
		r.Failf("unknown alternative %d", index)
		return nil
	}
}

// Brochure is the client's offer. Its names are those under which transports and channels are
// registered; the server ignores unknown names.
type Brochure struct {
	// TransportDomainDescriptors identifies, for each transport, the processes that the client can
	// reach with it.
	TransportDomainDescriptors map[string]string

	// ChannelDeviceDescriptors contains, for each channel, the client's devices that it serves, and
	// what must match for it to work.
	ChannelDeviceDescriptors map[string]map[device.Device]string
}

// Minimum size in bytes of a map's entry, by the types of key and value.
const (
	minTextText   = 4               // bd 00, bd 00
	minTextMap    = 4               // bd 00, bb 00
	minDeviceText = minDevice + 2   // device, bd 00
	minPairText   = 2*minDevice + 4 // ba 02, devices, bd 00
	minUintUint   = 2               // 00, 00
	minTextUints  = 4               // bd 00, bc 00
)

// Append appends the encoding of m to dst and returns the extended slice. The devices must pass
// [Limits.CheckDevice].
func (m *Brochure) Append(dst []byte) []byte {
	dst = nop.AppendStructHeader(dst, 2)
	dst = appendMap(dst, m.TransportDomainDescriptors, strings.Compare, nop.AppendString, nop.AppendString)
	return appendChannelDevices(dst, m.ChannelDeviceDescriptors)
}

// DecodeBrochure decodes a Brochure, which must be the whole of p. The result does not alias p. If
// p is invalid or exceeds limits, the error is an [*Error] and the result is nil.
func DecodeBrochure(p []byte, limits Limits) (*Brochure, error) {
	r := newReader("Brochure", p, limits)
	r.Struct(2)
	m := new(Brochure)
	r.at("transportDomainDescriptors")
	m.TransportDomainDescriptors = readMap(&r, minTextText, (*reader).text, (*reader).text)
	r.at("channelDeviceDescriptors")
	m.ChannelDeviceDescriptors = r.channelDevices()
	return result(&r, m)
}

func appendChannelDevices(dst []byte, m map[string]map[device.Device]string) []byte {
	return appendMap(dst, m, strings.Compare, nop.AppendString, appendDeviceTexts)
}

func appendDeviceTexts(dst []byte, m map[device.Device]string) []byte {
	return appendMap(dst, m, compareDevices, appendDevice, nop.AppendString)
}

func (r *reader) channelDevices() map[string]map[device.Device]string {
	return readMap(r, minTextMap, (*reader).text, (*reader).deviceTexts)
}

func (r *reader) deviceTexts() map[device.Device]string {
	return readMap(r, minDeviceText, (*reader).newDevice, (*reader).text)
}

// BrochureAnswer is the server's choice: what both ends will use, and which connections the client has
// to open for it.
type BrochureAnswer struct {
	// Transport is the chosen transport, and Address is where the server listens on it. The client
	// opens all further connections there.
	Transport string
	Address   string

	// TransportRegistrationIDs are the ids of the pipe's own connections, by [DescriptorConnection] and
	// [ReplyConnection].
	TransportRegistrationIDs map[uint64]uint64

	// TransportDomainDescriptor is the server's descriptor for the chosen transport.
	TransportDomainDescriptor string

	// ChannelRegistrationIDs are the ids of the connections of each chosen
	// channel, in the channel's order.
	ChannelRegistrationIDs map[string][]uint64

	// ChannelDeviceDescriptors are all the server's descriptors for each chosen channel.
	ChannelDeviceDescriptors map[string]map[device.Device]string

	// ChannelForDevicePair names the channel for each pair of devices that can exchange tensors. The
	// client computes the same map and compares.
	ChannelForDevicePair map[DevicePair]string
}

// Keys of TransportRegistrationIDs.
const (
	// DescriptorConnection is present only if the chosen transport differs from the one on which the
	// pipe was opened.
	DescriptorConnection uint64 = 0

	// ReplyConnection is always present.
	ReplyConnection uint64 = 1
)

// DevicePair is a pair of devices, one at each end of a pipe.
type DevicePair struct {
	Server, Client device.Device
}

// Append appends the encoding of m to dst and returns the extended slice. The devices must pass
// [Limits.CheckDevice].
func (m *BrochureAnswer) Append(dst []byte) []byte {
	dst = nop.AppendStructHeader(dst, 7)
	dst = nop.AppendString(nop.AppendString(dst, m.Transport), m.Address)
	dst = appendMap(dst, m.TransportRegistrationIDs, cmp.Compare, nop.AppendUint, nop.AppendUint)
	dst = nop.AppendString(dst, m.TransportDomainDescriptor)
	dst = appendMap(dst, m.ChannelRegistrationIDs, strings.Compare, nop.AppendString, nop.AppendUint64s)
	dst = appendChannelDevices(dst, m.ChannelDeviceDescriptors)
	return appendMap(dst, m.ChannelForDevicePair, comparePairs, appendPair, nop.AppendString)
}

// DecodeBrochureAnswer decodes a BrochureAnswer, which must be the whole of p. The result does not
// alias p. If p is invalid or exceeds limits, the error is an [*Error] and the result is nil.
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

// uints reads and returns the registration ids of a channel's connections. If there are more than
// Limits.Entries, it fails r. After an error of r it returns nil.
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
