package wire

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Probing is what an end sends about channels that must be probed with the actual peer, and about
// failed candidates. It is encoded as extensions of a [Marker]: "probe:cma=0a1b...",
// "refused:cma=7065..." and "without:shm=6e6f...", with the bytes in hexadecimal.
type Probing struct {
	// Offers are the offers of an end by channel. An answer contains only channels for which the client
	// sent offers too; the client confirms or rejects such an answer, see [MaxRejection].
	Offers map[string][]byte

	// Refused contains, by channel, why an end does not use it; Without, by transport, why an end does
	// not use that.
	Refused, Without map[string]string
}

// Limits of a Probing. Writers and readers ignore what exceeds them.
const (
	MaxProbed      = 16  // channels
	maxProbedName  = 64  // bytes of a name
	maxProbedBytes = 256 // bytes of an offer or a reason
)

// MaxRejection is the maximum size in bytes of the frame that a client sends directly after an answer
// with offers, on the same connection. The frame is empty if the client accepts the answer; otherwise
// it is the reason for rejection, and the client repeats the handshake without the channel.
const MaxRejection = 1024

// Prefixes of extensions.
const (
	offerExtension   = "probe:"
	refusedExtension = "refused:"
	withoutExtension = "without:"
)

// Empty reports whether p contains nothing.
func (p Probing) Empty() bool { return len(p.Offers)+len(p.Refused)+len(p.Without) == 0 }

func (p Probing) extensions() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(p.Offers)) {
		appendProbed(&b, offerExtension, name, p.Offers[name])
	}
	appendReasons(&b, refusedExtension, p.Refused)
	appendReasons(&b, withoutExtension, p.Without)
	return b.String()
}

func appendReasons(b *strings.Builder, extension string, reasons map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(reasons)) {
		reason := reasons[name]
		appendProbed(b, extension, name, []byte(strings.ToValidUTF8(reason[:min(len(reason), maxProbedBytes)], "")))
	}
}

func appendProbed(b *strings.Builder, extension, name string, data []byte) {
	if name == "" || len(name) > maxProbedName || len(data) > maxProbedBytes || strings.ContainsAny(name, " =") {
		return
	}
	b.WriteString(" " + extension + name + "=" + hex.EncodeToString(data))
}

// parseProbing parses the probing extensions of a marker, ignoring extensions that are unknown,
// malformed or exceed the limits. The maps of the result are never nil.
func parseProbing(marker string) Probing {
	p := Probing{Offers: map[string][]byte{}, Refused: map[string]string{}, Without: map[string]string{}}
	for extension := range markerExtensions(marker) {
		key, text, _ := strings.Cut(extension, "=")
		data, err := hex.DecodeString(text)
		if err != nil || len(data) > maxProbedBytes || len(key) > len(refusedExtension)+maxProbedName {
			continue
		}
		if name, ok := strings.CutPrefix(key, offerExtension); ok && len(p.Offers) < MaxProbed {
			p.Offers[name] = data
		}
		if name, ok := strings.CutPrefix(key, refusedExtension); ok && len(p.Refused) < MaxProbed {
			p.Refused[name] = string(data)
		}
		if name, ok := strings.CutPrefix(key, withoutExtension); ok && len(p.Without) < MaxProbed {
			p.Without[name] = string(data)
		}
	}
	return p
}

// AddProbing adds p, as extensions, to the marker of m. If m has no marker it does nothing.
func (m *Brochure) AddProbing(p Probing) {
	if _, ok := m.Marker(); ok {
		m.TransportDomainDescriptors[MarkerName] += p.extensions()
	}
}

// Probing returns the probing extensions of the marker of m, an empty Probing if there are none.
func (m *Brochure) Probing() Probing { return parseProbing(m.TransportDomainDescriptors[MarkerName]) }

// AddProbing adds p, as extensions, to the marker of m. If m has no marker it does nothing.
func (m *BrochureAnswer) AddProbing(p Probing) {
	if _, ok := m.Marker(); ok {
		m.ChannelDeviceDescriptors[MarkerName][device.CPU()] += p.extensions()
	}
}

// Probing returns the probing extensions of the marker of m, an empty Probing if there are none.
func (m *BrochureAnswer) Probing() Probing {
	return parseProbing(m.ChannelDeviceDescriptors[MarkerName][device.CPU()])
}

// Refusal is the reason why a server opens no pipe. It is an extension of the marker of an answer that
// chooses nothing, and is sent only to a client with a marker.
type Refusal struct {
	Kind RefusalKind
	Text string // UTF-8, at most MaxRefusal bytes
}

// RefusalKind classifies a Refusal, so that programs can distinguish the reasons.
type RefusalKind string

// The known kinds. Any other kind counts as RefusedOtherwise.
const (
	RefusedByPolicy    RefusalKind = "policy"
	RefusedByTransport RefusalKind = "transport"
	RefusedByDialect   RefusalKind = "dialect"
	RefusedOtherwise   RefusalKind = "other"
)

// MaxRefusal is the maximum size of the text of a refusal in bytes.
const MaxRefusal = 1024

const refusalExtension = "no-pipe:"

// NewRefusal returns an answer that chooses nothing and has r in its marker. A text that is too long
// is truncated.
func NewRefusal(r Refusal) *BrochureAnswer {
	m := &BrochureAnswer{ChannelDeviceDescriptors: map[string]map[device.Device]string{}}
	m.Mark(Marker{})
	text := strings.ToValidUTF8(r.Text[:min(len(r.Text), MaxRefusal)], "")
	m.ChannelDeviceDescriptors[MarkerName][device.CPU()] += " " + refusalExtension + string(r.Kind) + "=" + hex.EncodeToString([]byte(text))
	return m
}

// Refusal returns the refusal in the marker of m; ok is false if there is none. An unknown kind becomes
// RefusedOtherwise. The text is empty if the received one is too long or malformed.
func (m *BrochureAnswer) Refusal() (r Refusal, ok bool) {
	for extension := range m.extensions() {
		rest, found := strings.CutPrefix(extension, refusalExtension)
		if !found {
			continue
		}
		kind, digits, _ := strings.Cut(rest, "=")
		text, err := hex.DecodeString(digits)
		if err != nil || len(text) > MaxRefusal {
			text = nil
		}
		r = Refusal{Kind: RefusalKind(kind), Text: string(text)}
		switch r.Kind {
		case RefusedByPolicy, RefusedByTransport, RefusedByDialect:
		default:
			r.Kind = RefusedOtherwise
		}
		return r, true
	}
	return Refusal{}, false
}

// SizeClass is the minimum size in bytes of the tensors that may use a channel. A tensor uses the first
// channel, in the order of the classes, that serves its devices and whose minimum it reaches. Classes
// are encoded as extensions of the [Marker]: "size:636d61=0000100000000000", the name and the number,
// little-endian, in hexadecimal.
type SizeClass struct {
	Channel string
	From    uint64
}

const sizeExtension = "size:"

// AddSizes adds classes, as extensions, to the marker of m. If m has no marker it does nothing.
func (m *BrochureAnswer) AddSizes(classes []SizeClass) {
	if _, ok := m.Marker(); !ok {
		return
	}
	for _, c := range classes {
		m.ChannelDeviceDescriptors[MarkerName][device.CPU()] += fmt.Sprintf(" %s%x=%x",
			sizeExtension, c.Channel, binary.LittleEndian.AppendUint64(nil, c.From))
	}
}

// Sizes returns the size classes of m in their order, or nil if there are none. It returns an error if
// a class is malformed, because both ends must use the same classes.
func (m *BrochureAnswer) Sizes() ([]SizeClass, error) {
	var classes []SizeClass
	for extension := range m.extensions() {
		rest, ok := strings.CutPrefix(extension, sizeExtension)
		if !ok {
			continue
		}
		name, number, _ := strings.Cut(rest, "=")
		channel, err1 := hex.DecodeString(name)
		from, err2 := hex.DecodeString(number)
		if err1 != nil || err2 != nil || len(channel) == 0 || len(from) != 8 {
			return nil, fmt.Errorf("wire: %.40q is no size class", extension)
		}
		classes = append(classes, SizeClass{string(channel), binary.LittleEndian.Uint64(from)})
	}
	return classes, nil
}

// Preferences are what a client would like the server to choose. They are extensions of the marker of
// the Brochure. A client does not offer what it must not use.
type Preferences struct {
	// Transports and Channels are preferred over all others, in this order.
	Transports, Channels []string

	// NeedsChannel: the client has no use for a pipe without channels.
	NeedsChannel bool
}

// maxPreferences bounds the names of each kind.
const maxPreferences = 16

const (
	preferTransportExtension = "prefer-transport:"
	preferChannelExtension   = "prefer-channel:"
	needsChannelExtension    = "needs-channel"
)

// AddPreferences adds w, as extensions, to the marker of m; names that cannot be encoded are ignored.
// If m has no marker it does nothing.
func (m *Brochure) AddPreferences(w Preferences) {
	if _, ok := m.Marker(); !ok {
		return
	}
	extensions := appendPreferences(nil, preferTransportExtension, w.Transports)
	extensions = appendPreferences(extensions, preferChannelExtension, w.Channels)
	if w.NeedsChannel {
		extensions = append(extensions, needsChannelExtension)
	}
	for _, extension := range extensions {
		m.TransportDomainDescriptors[MarkerName] += " " + extension
	}
}

// appendPreferences appends an extension for each of the first maxPreferences names to extensions and
// returns the extended slice. An extension is the prefix extension, followed by the name. Names that
// cannot be encoded are ignored.
func appendPreferences(extensions []string, extension string, names []string) []string {
	for _, name := range names[:min(len(names), maxPreferences)] {
		if name != "" && len(name) <= maxProbedName && !strings.ContainsAny(name, " =") {
			extensions = append(extensions, extension+name)
		}
	}
	return extensions
}

// Preferences returns the preferences in the marker of m, empty ones if there are none. It ignores
// unknown extensions, and names that exceed the limits or are repeated.
func (m *Brochure) Preferences() (w Preferences) {
	for extension := range markerExtensions(m.TransportDomainDescriptors[MarkerName]) {
		w.Transports = parsePreference(w.Transports, extension, preferTransportExtension)
		w.Channels = parsePreference(w.Channels, extension, preferChannelExtension)
		w.NeedsChannel = w.NeedsChannel || extension == needsChannelExtension
	}
	return w
}

func parsePreference(names []string, extension, prefix string) []string {
	name, ok := strings.CutPrefix(extension, prefix)
	if !ok || name == "" || len(name) > maxProbedName || len(names) == maxPreferences || slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}
