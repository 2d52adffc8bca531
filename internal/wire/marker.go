package wire

import (
	"fmt"
	"iter"
	"strconv"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// MarkerName is the name under which an end of ours says in the handshake what
// it can do beyond TensorPipe's protocol. It stands among the transports of a
// Brochure and the channels of a BrochureAnswer, where upstream ignores names
// that it does not know. An answer carries it only to a client that did.
const MarkerName = "tensorpipe-go"

// ControlConnection is a key of TransportRegistrationIDs that only ends of ours
// use: the connection for control messages, see [Control].
const ControlConnection uint64 = 1 << 32

// BulkConnection is the key of the bulk connection of the native dialect, which
// the client opens when it is first needed, if at all.
const BulkConnection uint64 = 1<<32 | 1

// Versions of a Marker: 0 is TensorPipe's protocol as it is, with a control
// connection where both ends have FeatureControl; 1 is the native dialect of
// docs/wire.md.
const (
	VersionCompatible uint32 = 0
	VersionNative     uint32 = 1
)

// Features are the bits of a Marker. Unknown bits are ignored.
type Features uint64

const (
	// FeatureControl: the end can have a control connection in the compatible
	// dialect. The native one always has a stream for that.
	FeatureControl Features = 1 << iota

	// FeatureCompression: the end understands compressed parts of messages, in
	// the native dialect.
	FeatureCompression
)

// Marker says which dialects of ours an end speaks, from MinVersion to
// MaxVersion, and what else it can do. In an answer both are the version that
// the two ends are going to speak: the server chooses the highest that both have.
type Marker struct {
	MinVersion, MaxVersion uint32
	Features               Features
}

// String is the form on the wire: "0-0+1", with the features in hexadecimal.
func (m Marker) String() string {
	return fmt.Sprintf("%d-%d+%x", m.MinVersion, m.MaxVersion, uint64(m.Features))
}

// ParseMarker reads the form that String prints. Text behind a space is
// ignored, for the use of later versions.
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

// behindMarker are the words behind a marker.
func behindMarker(s string) iter.Seq[string] {
	_, words, _ := strings.Cut(s, " ")
	return strings.SplitSeq(words, " ")
}

// Mark puts m into a Brochure.
func (m *Brochure) Mark(marker Marker) {
	m.TransportDomainDescriptors[MarkerName] = marker.String()
}

// Marker takes the marker out of a Brochure. ok is false if there is none, or
// none that this version understands.
func (m *Brochure) Marker() (marker Marker, ok bool) {
	marker, err := ParseMarker(m.TransportDomainDescriptors[MarkerName])
	return marker, err == nil
}

// Mark puts m into a BrochureAnswer.
func (m *BrochureAnswer) Mark(marker Marker) {
	m.ChannelDeviceDescriptors[MarkerName] = map[device.Device]string{device.CPU(): marker.String()}
}

// Marker takes the marker out of a BrochureAnswer, as that of Brochure does.
func (m *BrochureAnswer) Marker() (marker Marker, ok bool) {
	marker, err := ParseMarker(m.ChannelDeviceDescriptors[MarkerName][device.CPU()])
	return marker, err == nil
}

// words are those behind the marker.
func (m *BrochureAnswer) words() iter.Seq[string] {
	return behindMarker(m.ChannelDeviceDescriptors[MarkerName][device.CPU()])
}
