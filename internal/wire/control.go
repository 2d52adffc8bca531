package wire

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// Control is a message on the control connection of two ends of ours. On the
// wire it is one byte for the kind and the fields behind it, numbers with 8
// bytes, little-endian; both ends send any kind at any time.
type Control struct {
	Kind   ControlKind
	Number uint64 // of WantRead and HaveRead: the message, counted from 0
	Reason string // of Goodbye
}

// ControlKind is the kind of a Control.
type ControlKind byte

const (
	// WantRead asks to be told when a message has been read.
	WantRead ControlKind = 1
	// HaveRead says that a message and all before it have been read.
	HaveRead ControlKind = 2
	// Goodbye says why its sender closes the pipe. Nothing follows.
	Goodbye ControlKind = 3
)

// MaxReason bounds a Reason in bytes.
const MaxReason = 1024

// MaxControl bounds an encoded Control in bytes.
const MaxControl = 1 + MaxReason

// Append appends the encoded message to dst. A long Reason is cut.
func (m Control) Append(dst []byte) []byte {
	dst = append(dst, byte(m.Kind))
	if m.Kind == Goodbye {
		return append(dst, clipText(m.Reason)...)
	}
	return binary.LittleEndian.AppendUint64(dst, m.Number)
}

// clipText cuts s to MaxReason bytes between two characters.
func clipText(s string) string {
	if len(s) <= MaxReason {
		return s
	}
	n := MaxReason
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// DecodeControl decodes a Control from the whole of p. A kind that this version
// does not know decodes to a Control of that kind and nothing else.
func DecodeControl(p []byte) (Control, error) {
	if len(p) == 0 {
		return Control{}, fmt.Errorf("wire: empty control message")
	}
	m := Control{Kind: ControlKind(p[0])}
	switch body := p[1:]; m.Kind {
	case WantRead, HaveRead:
		if len(body) != 8 {
			return Control{}, fmt.Errorf("wire: control message of kind %d with %d bytes, want 8", m.Kind, len(body))
		}
		m.Number = binary.LittleEndian.Uint64(body)
	case Goodbye:
		if len(body) > MaxReason || !utf8.Valid(body) {
			return Control{}, fmt.Errorf("wire: goodbye with %d bytes that are no text of at most %d", len(body), MaxReason)
		}
		m.Reason = string(body)
	}
	return m, nil
}
