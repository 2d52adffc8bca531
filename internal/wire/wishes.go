package wire

import (
	"slices"
	"strings"
)

// Wishes are what a client would like the server to choose. They travel behind the
// marker of the Brochure, as words without a value. What a client does not want at all
// it does not offer.
type Wishes struct {
	// Transports and Channels are names that go before all others, in this order.
	Transports, Channels []string

	// NeedsChannel: a pipe without any channel is of no use to the client.
	NeedsChannel bool
}

// maxWishes bounds the names of each kind.
const maxWishes = 16

const (
	preferTransportWord = "prefer-transport:"
	preferChannelWord   = "prefer-channel:"
	needsChannelWord    = "needs-channel"
)

// AddWishes puts wishes behind the marker, if there is one.
func (m *Brochure) AddWishes(w Wishes) {
	if _, ok := m.Marker(); !ok {
		return
	}
	words := appendWishes(nil, preferTransportWord, w.Transports)
	words = appendWishes(words, preferChannelWord, w.Channels)
	if w.NeedsChannel {
		words = append(words, needsChannelWord)
	}
	for _, word := range words {
		m.TransportDomainDescriptors[MarkerName] += " " + word
	}
}

// appendWishes leaves out names that have no form as a word.
func appendWishes(words []string, word string, names []string) []string {
	for _, name := range names[:min(len(names), maxWishes)] {
		if name != "" && len(name) <= maxProbedName && !strings.ContainsAny(name, " =") {
			words = append(words, word+name)
		}
	}
	return words
}

// Wishes returns what stands behind the marker. Words that it does not know, and names
// beyond the bounds, it ignores.
func (m *Brochure) Wishes() (w Wishes) {
	for word := range behindMarker(m.TransportDomainDescriptors[MarkerName]) {
		w.Transports = parseWish(w.Transports, word, preferTransportWord)
		w.Channels = parseWish(w.Channels, word, preferChannelWord)
		w.NeedsChannel = w.NeedsChannel || word == needsChannelWord
	}
	return w
}

func parseWish(names []string, word, prefix string) []string {
	name, ok := strings.CutPrefix(word, prefix)
	if !ok || name == "" || len(name) > maxProbedName || len(names) == maxWishes || slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}
