package wire

import (
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// MarkerName is the name under which an end of this library announces what it supports beyond
// TensorPipe's protocol. It is an entry among the transports of a Brochure and the channels of a
// BrochureAnswer, where TensorPipe ignores unknown names. Only an answer to a client that sent a marker
// contains one.
const MarkerName = "tensorpipe-go"

// ControlConnection is a key of TransportRegistrationIDs for ends of this library: the connection for
// control messages, see [Control].
const ControlConnection uint64 = 1 << 32

// BulkConnection is the key of the bulk connection of the native dialect, which
// the client opens when it is first needed, if at all.
const BulkConnection uint64 = 1<<32 | 1

// Versions of a Marker: 0 is TensorPipe's protocol, with a control connection if both ends have
// FeatureControl; 1 is the native dialect of docs/wire.md.
const (
	VersionCompatible uint32 = 0
	VersionNative     uint32 = 1
)

// Features are the bits of a Marker. Unknown bits are ignored.
type Features uint64

const (
	// FeatureControl: the end supports a control connection in the compatible dialect. The native one
	// always has a control stream.
	FeatureControl Features = 1 << iota

	// FeatureCompression: the end supports compressed parts of messages in the native dialect.
	FeatureCompression

	// FeatureJoined: the end supports joined tensors of messages in the native dialect.
	FeatureJoined

	_ // eager transfers that never wait for credit

	// FeatureEager: the end can receive eager transfers in the native dialect, and grants credit for
	// them.
	FeatureEager
)

// Marker lists the dialects that an end supports, from MinVersion to MaxVersion, and its features. In
// an answer both versions are the one that the server has chosen, the highest that both ends support.
type Marker struct {
	MinVersion, MaxVersion uint32
	Features               Features
}

// String returns the form of m on the wire, such as "0-0+1": the versions, and the features in
// hexadecimal.
func (m Marker) String() string {
	return fmt.Sprintf("%d-%d+%x", m.MinVersion, m.MaxVersion, uint64(m.Features))
}

// ParseMarker parses the form of a marker that String returns. It ignores the first space and
// everything after it, where the extensions are. If s has another form, or MinVersion is greater
// than MaxVersion, it returns a zero Marker and an error.
func ParseMarker(s string) (Marker, error) {
	s, _, _ = strings.Cut(s, " ")
	versions, features, ok1 := strings.Cut(s, "+")
	low, high, ok2 := strings.Cut(versions, "-")
	minVersion, err1 := strconv.ParseUint(low, 10, 32)
	maxVersion, err2 := strconv.ParseUint(high, 10, 32)
	bits, err3 := strconv.ParseUint(features, 16, 64)
	if !ok1 || !ok2 || err1 != nil || err2 != nil || err3 != nil || minVersion > maxVersion {
		return Marker{}, fmt.Errorf("wire: %.40q is not a marker", s)
	}
	return Marker{uint32(minVersion), uint32(maxVersion), Features(bits)}, nil
}

// markerExtensions returns a sequence of the extensions in s, the text of a marker: the words after
// the first space, separated by spaces. If there are none, the sequence has one empty word.
func markerExtensions(s string) iter.Seq[string] {
	_, extensions, _ := strings.Cut(s, " ")
	return strings.SplitSeq(extensions, " ")
}

// Mark sets the marker of m to marker, without extensions. An earlier marker and its extensions are
// lost. The map m.TransportDomainDescriptors must not be nil.
func (m *Brochure) Mark(marker Marker) {
	m.TransportDomainDescriptors[MarkerName] = marker.String()
}

// Marker parses the marker of m, the entry MarkerName of m.TransportDomainDescriptors, and returns
// it without its extensions, and true. If there is no such entry, or ParseMarker rejects the entry,
// the results are a zero Marker and false.
func (m *Brochure) Marker() (marker Marker, ok bool) {
	marker, err := ParseMarker(m.TransportDomainDescriptors[MarkerName])
	return marker, err == nil
}

// Mark sets the marker of m to marker, without extensions. An earlier marker and its extensions are
// lost. The map m.ChannelDeviceDescriptors must not be nil.
func (m *BrochureAnswer) Mark(marker Marker) {
	m.ChannelDeviceDescriptors[MarkerName] = map[device.Device]string{device.CPU(): marker.String()}
}

// Marker parses the marker of m, the entry MarkerName of m.ChannelDeviceDescriptors, and returns it
// without its extensions, and true. If there is no such entry, or ParseMarker rejects the entry,
// the results are a zero Marker and false.
func (m *BrochureAnswer) Marker() (marker Marker, ok bool) {
	marker, err := ParseMarker(m.ChannelDeviceDescriptors[MarkerName][device.CPU()])
	return marker, err == nil
}

// extensions returns a sequence of the extensions that follow the marker in m. If there are none,
// or m has no marker, the sequence has one empty word.
func (m *BrochureAnswer) extensions() iter.Seq[string] {
	return markerExtensions(m.ChannelDeviceDescriptors[MarkerName][device.CPU()])
}
