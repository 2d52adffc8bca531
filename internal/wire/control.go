package wire

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// Control is a message on the control connection, which exists between two ends of this library. It is
// encoded as one byte for the kind, followed by the fields; numbers have 8 bytes, little-endian. Both
// ends may send any kind at any time.
type Control struct {
	Kind   ControlKind
	Number uint64 // of WantRead and HaveRead: the message, counted from 0
	Reason string // of Goodbye
}

// ControlKind is the kind of a Control.
type ControlKind byte

const (
	// WantRead requests a HaveRead when a message has been read.
	WantRead ControlKind = 1
	// HaveRead reports that a message and all earlier ones have been read.
	HaveRead ControlKind = 2
	// Goodbye is the close frame, with the reason for closing. Nothing follows it.
	Goodbye ControlKind = 3
)

// MaxReason is the maximum size of a Reason in bytes.
const MaxReason = 1024

// MaxControl is the maximum size of an encoded Control in bytes.
const MaxControl = 1 + MaxReason

// Append appends the encoding of m to dst and returns the extended slice. A Goodbye is sent with
// its Reason, which must be UTF-8 and is truncated to MaxReason bytes. Any other kind is sent with
// its Number.
func (m Control) Append(dst []byte) []byte {
	dst = append(dst, byte(m.Kind))
	if m.Kind == Goodbye {
		return append(dst, truncate(m.Reason)...)
	}
	return binary.LittleEndian.AppendUint64(dst, m.Number)
}

// truncate returns s if it has at most MaxReason bytes. Otherwise it returns the longest prefix of
// s that has at most MaxReason bytes and does not end within a character.
func truncate(s string) string {
	if len(s) <= MaxReason {
		return s
	}
	n := MaxReason
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// DecodeControl decodes a Control, which must be the whole of p. The result does not alias p. For
// an unknown kind it returns a Control with only Kind set, which the caller must ignore. An error
// means that the peer broke the protocol.
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
