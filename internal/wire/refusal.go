package wire

import (
	"encoding/hex"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// Refusal says why a server opens no pipe. It stands behind the marker of an answer that
// chooses nothing, which only a client with a marker gets.
type Refusal struct {
	Kind RefusalKind
	Text string // UTF-8, at most MaxRefusal bytes
}

// RefusalKind is what a program can make of a refusal.
type RefusalKind string

// The kinds that there are. Others mean RefusedOtherwise.
const (
	RefusedByPolicy    RefusalKind = "policy"
	RefusedByTransport RefusalKind = "transport"
	RefusedByDialect   RefusalKind = "dialect"
	RefusedOtherwise   RefusalKind = "other"
)

// MaxRefusal is the size of the text of a refusal in bytes, at most.
const MaxRefusal = 1024

const refusalWord = "no-pipe:"

// NewRefusal makes the answer that is one.
func NewRefusal(r Refusal) *BrochureAnswer {
	m := &BrochureAnswer{ChannelDeviceDescriptors: map[string]map[device.Device]string{}}
	m.Mark(Marker{})
	text := strings.ToValidUTF8(r.Text[:min(len(r.Text), MaxRefusal)], "")
	m.ChannelDeviceDescriptors[MarkerName][device.CPU()] += " " + refusalWord + string(r.Kind) + "=" + hex.EncodeToString([]byte(text))
	return m
}

// Refusal reports whether the answer is one. A text that is too long, or cannot be read,
// is empty.
func (m *BrochureAnswer) Refusal() (r Refusal, ok bool) {
	for word := range m.words() {
		rest, found := strings.CutPrefix(word, refusalWord)
		if !found {
			continue
		}
		kind, digits, _ := strings.Cut(rest, "=")
		text, err := hex.DecodeString(digits)
		if err != nil || len(text) > MaxRefusal {
			text = nil
		}
		return Refusal{Kind: knownKind(RefusalKind(kind)), Text: string(text)}, true
	}
	return Refusal{}, false
}

func knownKind(k RefusalKind) RefusalKind {
	switch k {
	case RefusedByPolicy, RefusedByTransport, RefusedByDialect:
		return k
	}
	return RefusedOtherwise
}
