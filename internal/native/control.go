package native

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// ControlKind is the kind of a frame on the control stream.
type ControlKind byte

const (
	// WantRead asks to be told when a message has been read.
	WantRead ControlKind = 0x01
	// HaveRead says that a message and all before it have been read or
	// discarded.
	HaveRead ControlKind = 0x02
	// Goodbye says why its sender closes the pipe. Nothing follows.
	Goodbye ControlKind = 0x03
	// Targets gives the devices for the open targets of a message.
	Targets ControlKind = 0x04
	// Abort says that the sender gives up a message, and why.
	Abort ControlKind = 0x05
	// Cancel says that the receiver gives up a message.
	Cancel ControlKind = 0x06
	// Ready says that memory waits for a transfer of the bulk connection.
	Ready ControlKind = 0x07
	// Bulk says that the bulk connection is going to be the next stream of the
	// session, not a connection of its own.
	Bulk ControlKind = 0x08
)

const controlFrame = "control frame" // in errors

var controlNames = map[ControlKind]string{
	WantRead: "WANT_READ", HaveRead: "HAVE_READ", Goodbye: "GOODBYE", Targets: "TARGETS",
	Abort: "ABORT", Cancel: "CANCEL", Ready: "READY", Bulk: "BULK",
}

func (k ControlKind) String() string {
	if name, ok := controlNames[k]; ok {
		return name
	}
	return fmt.Sprintf("kind %#02x", byte(k))
}

// MaxText bounds a Text in bytes.
const MaxText = 1024

// maxUnknown bounds in bytes what may be skipped because a later version sent
// it.
const maxUnknown = 4096

// Control is a frame of the control stream. Both ends send any kind at any
// time. Fields that its kind does not have are not sent, and zero when decoded.
type Control struct {
	Kind    ControlKind
	Number  uint64          // of the message; with Ready the id of the transfer, see [Transfer]
	Lane    uint16          // with Ready
	Text    string          // with Goodbye and Abort: the reason
	Devices []device.Device // with Targets: at least one
}

// Sizes in bytes of the fixed parts of bodies.
const (
	numberSize   = 8
	readySize    = 16
	targetsFixed = 12
	targetFixed  = 5
)

// Append appends the whole frame, with a checksum if crc is set. A long Text is
// cut, and what is not UTF-8 in it replaced. Devices must have kinds of 1 to 255
// bytes and no negative index.
func (c Control) Append(dst []byte, crc bool) []byte {
	start := len(dst)
	dst = Header{Kind: byte(c.Kind), CRC: crc}.Append(dst)
	dst = c.appendBody(dst)
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(dst)-start-HeaderSize))
	if crc {
		dst = AppendChecksum(dst, start)
	}
	return dst
}

func (c *Control) appendBody(dst []byte) []byte {
	if c.Kind.hasNumber() {
		dst = binary.LittleEndian.AppendUint64(dst, c.Number)
	}
	switch c.Kind {
	case Goodbye, Abort:
		dst = append(dst, cleanText(c.Text)...)
	case Targets:
		dst = appendDevices(dst, c.Devices)
	case Ready:
		dst = binary.LittleEndian.AppendUint16(dst, c.Lane)
		dst = append(dst, make([]byte, 6)...)
	}
	return dst
}

func (k ControlKind) hasNumber() bool {
	switch k {
	case WantRead, HaveRead, Targets, Abort, Cancel, Ready:
		return true
	}
	return false
}

func appendDevices(dst []byte, devices []device.Device) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(devices)))
	for _, d := range devices {
		dst = append(append(dst, byte(len(d.Kind))), d.Kind...)
		dst = binary.LittleEndian.AppendUint32(dst, uint32(d.Index))
	}
	return dst
}

// cleanText makes a text fit to be sent. Long ones are cut between two
// characters.
func cleanText(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= MaxText {
		return s
	}
	n := MaxText
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
