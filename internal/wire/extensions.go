package wire

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Probing is what an end sends about channels that must be probed with the actual peer, and about
// failed candidates. It is encoded as extensions of a [Marker]: "probe:cma=0a1b...",
// "refused:cma=7065...", "unusable:gdr,cuda:1=6e6f...", "without:shm=6e6f..." and
// "no-session:own=6974...", with the bytes in hexadecimal.
type Probing struct {
	// Offers are the offers of an end by channel. An answer contains only channels for which the client
	// sent offers too; the client confirms or rejects such an answer, see [MaxRejection].
	Offers map[string][]byte

	// Refused contains, by channel, why an end does not use it; Without, by transport, why an end does
	// not use that.
	Refused, Without map[string]string

	// Unusable contains why channels do not serve devices of an end.
	Unusable map[ChannelDevice]string

	// NoSession contains, by transport, why the connections of an end carry no session. Such a transport
	// can carry the compatible dialect only.
	NoSession map[string]string
}

// ChannelDevice is a channel and a device of the end that names the two.
type ChannelDevice struct {
	Channel string
	Device  device.Device
}

// Limits of a Probing. Writers and readers ignore what exceeds them.
const (
	MaxProbed      = 16  // channels
	maxProbedName  = 64  // bytes of a name
	maxProbedBytes = 256 // bytes of an offer or a reason
)

// maxMarker bounds the text of a marker with its extensions, in bytes. It is the default of
// Limits.Text, since a reader rejects a message with a longer text.
const maxMarker = 4096

// MaxRejection is the maximum size in bytes of the frame that a client sends directly after an answer
// with offers, on the same connection. The frame is empty if the client accepts the answer; otherwise
// it is the reason for rejection, and the client repeats the handshake without the channel.
const MaxRejection = 1024

// Prefixes of extensions.
const (
	offerExtension     = "probe:"
	refusedExtension   = "refused:"
	unusableExtension  = "unusable:"
	withoutExtension   = "without:"
	noSessionExtension = "no-session:"
)

// Empty reports whether p has no offers and no reasons.
func (p Probing) Empty() bool {
	return len(p.Offers)+len(p.Refused)+len(p.Unusable)+len(p.Without)+len(p.NoSession) == 0
}

// extend returns marker with the extensions of p: first those that decide about the pipe. It omits
// an extension that does not fit into maxMarker bytes, and those beyond MaxProbed of one kind.
func (p Probing) extend(marker string) string {
	marker = extendProbed(marker, offerExtension, p.Offers)
	marker = extendProbed(marker, noSessionExtension, reasonBytes(p.NoSession))
	marker = extendProbed(marker, refusedExtension, reasonBytes(p.Refused))
	marker = extendProbed(marker, unusableExtension, reasonBytes(deviceNames(p.Unusable)))
	return extendProbed(marker, withoutExtension, reasonBytes(p.Without))
}

// reasonBytes returns the reasons as they are encoded: truncated, and without bytes that are not
// UTF-8.
func reasonBytes(reasons map[string]string) map[string][]byte {
	all := make(map[string][]byte, len(reasons))
	for name, reason := range reasons {
		all[name] = []byte(strings.ToValidUTF8(reason[:min(len(reason), maxProbedBytes)], ""))
	}
	return all
}

// deviceNames returns reasons with the names of channels and devices as they are encoded, "gdr,cuda:1".
// It leaves out devices whose kind has a comma.
func deviceNames(reasons map[ChannelDevice]string) map[string]string {
	all := make(map[string]string, len(reasons))
	for c, reason := range reasons {
		if !strings.Contains(c.Device.Kind, ",") {
			all[c.Channel+","+c.Device.String()] = reason
		}
	}
	return all
}

// parseChannelDevice parses a name that deviceNames has made. The result is false for any other text.
func parseChannelDevice(name string) (c ChannelDevice, ok bool) {
	comma := strings.LastIndexByte(name, ',')
	if comma <= 0 {
		return c, false
	}
	d, err := device.Parse(name[comma+1:])
	return ChannelDevice{name[:comma], d}, err == nil && (Limits{}).CheckDevice(d) == nil
}

func extendProbed(marker, extension string, entries map[string][]byte) string {
	n := 0
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		data := entries[name]
		if name == "" || len(name) > maxProbedName || len(data) > maxProbedBytes || strings.ContainsAny(name, " =") {
			continue
		}
		text := " " + extension + name + "=" + hex.EncodeToString(data)
		if n < MaxProbed && len(marker)+len(text) <= maxMarker {
			marker += text
			n++
		}
	}
	return marker
}

// parseProbing returns the offers and reasons in marker, the text of a marker with its extensions.
// It ignores extensions that are unknown or malformed, and those that are too long or too many. The
// maps of the result are never nil.
func parseProbing(marker string) Probing {
	p := Probing{
		Offers:  map[string][]byte{},
		Refused: map[string]string{}, Without: map[string]string{}, NoSession: map[string]string{},
		Unusable: map[ChannelDevice]string{},
	}
	for extension := range markerExtensions(marker) {
		key, text, _ := strings.Cut(extension, "=")
		data, err := hex.DecodeString(text)
		if err != nil || len(data) > maxProbedBytes || len(key) > len(noSessionExtension)+maxProbedName {
			continue
		}
		if name, ok := strings.CutPrefix(key, offerExtension); ok && len(p.Offers) < MaxProbed {
			p.Offers[name] = data
		}
		if name, ok := strings.CutPrefix(key, refusedExtension); ok && len(p.Refused) < MaxProbed {
			p.Refused[name] = string(data)
		}
		if name, ok := strings.CutPrefix(key, unusableExtension); ok && len(p.Unusable) < MaxProbed {
			if c, ok := parseChannelDevice(name); ok {
				p.Unusable[c] = string(data)
			}
		}
		if name, ok := strings.CutPrefix(key, withoutExtension); ok && len(p.Without) < MaxProbed {
			p.Without[name] = string(data)
		}
		if name, ok := strings.CutPrefix(key, noSessionExtension); ok && len(p.NoSession) < MaxProbed {
			p.NoSession[name] = string(data)
		}
	}
	return p
}

// AddProbing appends p, as extensions, to the marker of m. It omits offers that are too long,
// entries whose name is empty, too long or cannot be encoded, and entries that exceed MaxProbed or
// for which a reader's default limit for a text leaves no space; reasons are truncated. If m has no
// marker it does nothing.
func (m *Brochure) AddProbing(p Probing) {
	if _, ok := m.Marker(); ok {
		m.TransportDomainDescriptors[MarkerName] = p.extend(m.TransportDomainDescriptors[MarkerName])
	}
}

// Probing returns the offers and reasons in the extensions of m's marker. If there are none, the
// maps of the result are empty; they are never nil.
func (m *Brochure) Probing() Probing { return parseProbing(m.TransportDomainDescriptors[MarkerName]) }

// AddProbing appends p, as extensions, to the marker of m. It omits offers that are too long,
// entries whose name is empty, too long or cannot be encoded, and entries that exceed MaxProbed or
// for which a reader's default limit for a text leaves no space; reasons are truncated. If m has no
// marker it does nothing.
func (m *BrochureAnswer) AddProbing(p Probing) {
	if _, ok := m.Marker(); ok {
		descriptors := m.ChannelDeviceDescriptors[MarkerName]
		descriptors[device.CPU()] = p.extend(descriptors[device.CPU()])
	}
}

// Probing returns the offers and reasons in the extensions of m's marker. If there are none, the
// maps of the result are empty; they are never nil.
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
	RefusedByListener  RefusalKind = "listener"
	RefusedByLimit     RefusalKind = "limit"
	RefusedOtherwise   RefusalKind = "other"
)

// MaxRefusal is the maximum size of the text of a refusal in bytes.
const MaxRefusal = 1024

const refusalExtension = "no-pipe:"

// NewRefusal returns an answer that chooses nothing and has r in its marker. A text of more than
// MaxRefusal bytes is truncated, and bytes in it that are not UTF-8 are dropped.
func NewRefusal(r Refusal) *BrochureAnswer {
	m := &BrochureAnswer{ChannelDeviceDescriptors: map[string]map[device.Device]string{}}
	m.Mark(Marker{})
	text := strings.ToValidUTF8(r.Text[:min(len(r.Text), MaxRefusal)], "")
	m.ChannelDeviceDescriptors[MarkerName][device.CPU()] += " " + refusalExtension + string(r.Kind) + "=" + hex.EncodeToString([]byte(text))
	return m
}

// Refusal returns the refusal in the marker of m and true. If there is none, it returns a zero
// Refusal and false. An unknown kind becomes RefusedOtherwise. If the received text is too long or
// malformed, Text is empty.
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
		case RefusedByPolicy, RefusedByTransport, RefusedByDialect, RefusedByListener, RefusedByLimit:
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

// AddSizes appends classes, in their order, as extensions to the marker of m. If m has no marker it
// does nothing.
func (m *BrochureAnswer) AddSizes(classes []SizeClass) {
	if _, ok := m.Marker(); !ok {
		return
	}
	for _, c := range classes {
		m.ChannelDeviceDescriptors[MarkerName][device.CPU()] += fmt.Sprintf(" %s%x=%x",
			sizeExtension, c.Channel, binary.LittleEndian.AppendUint64(nil, c.From))
	}
}

// Sizes returns the size classes in the marker of m, in their order, or nil if there are none. If
// any class is malformed, it returns an error and no classes, because both ends must use the same
// ones.
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

// AddPreferences appends w, as extensions, to the marker of m. Of each kind it considers the first
// 16 names, and omits those that cannot be encoded. If m has no marker it does nothing.
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

// appendPreferences appends an extension for each of the first maxPreferences of names to
// extensions, and returns the extended slice. Each extension is the prefix extension followed by
// the name. Names that are empty, too long, or contain a space or "=" are omitted.
func appendPreferences(extensions []string, extension string, names []string) []string {
	for _, name := range names[:min(len(names), maxPreferences)] {
		if name != "" && len(name) <= maxProbedName && !strings.ContainsAny(name, " =") {
			extensions = append(extensions, extension+name)
		}
	}
	return extensions
}

// Preferences returns the client's preferences in the marker of m, or zero Preferences if there are
// none. It ignores unknown extensions, names that are too long or repeated, and names after the
// first 16 of each kind.
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

// A client that wants a session of Conns, and no pipe, adds an extension to the marker of its Brochure.
// The server repeats the extension in its answer, with the largest number of Conns that the client may
// have open in the session, in decimal. A server that does not know the extension opens a pipe.
const connsExtension = "conns"

// MaxConns is the largest number of Conns of a session that an answer may contain.
const MaxConns = 4096

// RequestConns asks for a session of Conns in the marker of m. If m has no marker it does nothing.
func (m *Brochure) RequestConns() {
	if _, ok := m.Marker(); ok {
		m.TransportDomainDescriptors[MarkerName] += " " + connsExtension
	}
}

// WantsConns reports whether the marker of m asks for a session of Conns.
func (m *Brochure) WantsConns() bool {
	for extension := range markerExtensions(m.TransportDomainDescriptors[MarkerName]) {
		if extension == connsExtension {
			return true
		}
	}
	return false
}

// AddConns appends n, the largest number of Conns of the session, to the marker of m. If m has no
// marker it does nothing.
func (m *BrochureAnswer) AddConns(n int) {
	if _, ok := m.Marker(); ok {
		m.ChannelDeviceDescriptors[MarkerName][device.CPU()] += fmt.Sprintf(" %s:%d", connsExtension, n)
	}
}

// Conns returns the largest number of Conns that the client may have open in the session, from 1 to
// MaxConns. It returns 0 if the marker of m has no such number, because the server has opened a
// pipe.
func (m *BrochureAnswer) Conns() int {
	for extension := range m.extensions() {
		text, ok := strings.CutPrefix(extension, connsExtension+":")
		if n, err := strconv.Atoi(text); ok && err == nil && n >= 1 && n <= MaxConns {
			return n
		}
	}
	return 0
}
