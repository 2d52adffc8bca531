package wire

import (
	"strings"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/nop"
)

// Brochure is the client's offer: what it could talk over. Names are those
// under which transports and channels are registered. The server ignores names
// that it does not know.
type Brochure struct {
	// TransportDomainDescriptors says for each transport which processes the
	// client can reach with it.
	TransportDomainDescriptors map[string]string

	// ChannelDeviceDescriptors says for each channel which of the client's
	// devices it serves, and what must match for it to work.
	ChannelDeviceDescriptors map[string]map[device.Device]string
}

// Least bytes of a map's entry, by the types of key and value.
const (
	minTextText   = 4               // bd 00, bd 00
	minTextMap    = 4               // bd 00, bb 00
	minDeviceText = minDevice + 2   // device, bd 00
	minPairText   = 2*minDevice + 4 // ba 02, devices, bd 00
	minUintUint   = 2               // 00, 00
	minTextUints  = 4               // bd 00, bc 00
)

// Append appends the encoded message to dst.
func (m *Brochure) Append(dst []byte) []byte {
	dst = nop.AppendStructHeader(dst, 2)
	dst = appendMap(dst, m.TransportDomainDescriptors, strings.Compare, nop.AppendString, nop.AppendString)
	return appendChannelDevices(dst, m.ChannelDeviceDescriptors)
}

// DecodeBrochure decodes a Brochure from the whole of p.
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
