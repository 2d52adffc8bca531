package wire

import (
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Probing is what an end says of channels that must be tried with an actual peer,
// and of what it does without. It stands behind a [Marker], in words of its own:
// "probe:cma=0a1b...", "refused:cma=7065..." and "without:shm=6e6f...", the bytes in
// hexadecimal.
type Probing struct {
	// Offers are what an end shows to the other, by the channel that tries it. In
	// an answer there are only channels that the client made offers for too; to
	// such an answer the client replies with a verdict, see [MaxVerdict].
	Offers map[string][]byte

	// Refused says why an end does without a channel, and Without why it does
	// without a transport.
	Refused, Without map[string]string
}

// Limits of a Probing. What is larger is left out, by those who write and by those
// who read.
const (
	MaxProbed      = 16  // channels
	maxProbedName  = 64  // bytes of a name
	maxProbedBytes = 256 // bytes of an offer or a reason
)

// MaxVerdict is the size in bytes of the frame that a client sends right behind an
// answer with offers, on the same connection. It is empty if the client goes on;
// else it says why not, and the client begins anew without the channel.
const MaxVerdict = 1024

// Prefixes of words.
const (
	offerWord   = "probe:"
	refusedWord = "refused:"
	withoutWord = "without:"
)

// Empty reports whether p says nothing.
func (p Probing) Empty() bool { return len(p.Offers)+len(p.Refused)+len(p.Without) == 0 }

func (p Probing) words() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(p.Offers)) {
		appendProbed(&b, offerWord, name, p.Offers[name])
	}
	appendReasons(&b, refusedWord, p.Refused)
	appendReasons(&b, withoutWord, p.Without)
	return b.String()
}

func appendReasons(b *strings.Builder, word string, reasons map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(reasons)) {
		reason := reasons[name]
		appendProbed(b, word, name, []byte(strings.ToValidUTF8(reason[:min(len(reason), maxProbedBytes)], "")))
	}
}

func appendProbed(b *strings.Builder, word, name string, data []byte) {
	if name == "" || len(name) > maxProbedName || len(data) > maxProbedBytes || strings.ContainsAny(name, " =") {
		return
	}
	b.WriteString(" " + word + name + "=" + hex.EncodeToString(data))
}

// parseProbing reads the words behind a marker. It passes over what it does not
// understand.
func parseProbing(marker string) Probing {
	p := Probing{Offers: map[string][]byte{}, Refused: map[string]string{}, Without: map[string]string{}}
	for word := range behindMarker(marker) {
		key, text, _ := strings.Cut(word, "=")
		data, err := hex.DecodeString(text)
		if err != nil || len(data) > maxProbedBytes || len(key) > len(refusedWord)+maxProbedName {
			continue
		}
		if name, ok := strings.CutPrefix(key, offerWord); ok && len(p.Offers) < MaxProbed {
			p.Offers[name] = data
		}
		if name, ok := strings.CutPrefix(key, refusedWord); ok && len(p.Refused) < MaxProbed {
			p.Refused[name] = string(data)
		}
		if name, ok := strings.CutPrefix(key, withoutWord); ok && len(p.Without) < MaxProbed {
			p.Without[name] = string(data)
		}
	}
	return p
}

// AddProbing puts p behind the marker of a Brochure; without one it does nothing.
func (m *Brochure) AddProbing(p Probing) {
	if _, ok := m.Marker(); ok {
		m.TransportDomainDescriptors[MarkerName] += p.words()
	}
}

// Probing is what stands behind the marker of a Brochure.
func (m *Brochure) Probing() Probing { return parseProbing(m.TransportDomainDescriptors[MarkerName]) }

// AddProbing puts p behind the marker of a BrochureAnswer; without one it does
// nothing.
func (m *BrochureAnswer) AddProbing(p Probing) {
	if _, ok := m.Marker(); ok {
		m.ChannelDeviceDescriptors[MarkerName][device.CPU()] += p.words()
	}
}

// Probing is what stands behind the marker of a BrochureAnswer.
func (m *BrochureAnswer) Probing() Probing {
	return parseProbing(m.ChannelDeviceDescriptors[MarkerName][device.CPU()])
}
