package native

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// ControlKind is the kind of a frame on the control stream.
type ControlKind byte

const (
	// WantRead requests a HaveRead when a message has been read.
	WantRead ControlKind = 0x01
	// HaveRead reports that a message and all earlier ones have been read or discarded.
	HaveRead ControlKind = 0x02
	// Goodbye is the close frame: the last frame of its sender, with the reason for closing.
	Goodbye ControlKind = 0x03
	// Targets names the devices for the open targets of a message.
	Targets ControlKind = 0x04
	// Abort reports that the sender aborts a message, with the reason.
	Abort ControlKind = 0x05
	// Cancel reports that the receiver aborts a message.
	Cancel ControlKind = 0x06
	// Ready reports that the receiver has memory for a transfer of the bulk connection.
	Ready ControlKind = 0x07
	// Bulk announces that the next stream of the session serves as the bulk connection, instead of a
	// connection of its own.
	Bulk ControlKind = 0x08
	// Credit grants bytes of eager transfers, or returns those of transfers that have ended.
	Credit ControlKind = 0x09
	// WantCredit requests that bytes be returned as soon as transfers end.
	WantCredit ControlKind = 0x0a
)

const controlFrame = "control frame" // in errors

var controlNames = map[ControlKind]string{
	WantRead: "WANT_READ", HaveRead: "HAVE_READ", Goodbye: "GOODBYE", Targets: "TARGETS",
	Abort: "ABORT", Cancel: "CANCEL", Ready: "READY", Bulk: "BULK",
	Credit: "CREDIT", WantCredit: "WANT_CREDIT",
}

func (k ControlKind) String() string {
	if name, ok := controlNames[k]; ok {
		return name
	}
	return fmt.Sprintf("kind %#02x", byte(k))
}

// MaxText is the maximum length of a Text in bytes.
const MaxText = 1024

// maxUnknown is the maximum size in bytes of a frame of an unknown kind, which a later version may send
// and this one skips.
const maxUnknown = 4096

// Control is a frame of the control stream. Both ends may send any kind at any time. Fields that the
// kind does not have are not sent, and are zero when decoded.
type Control struct {
	Kind    ControlKind
	Number  uint64          // of the message; with Ready the id of the transfer, see [TransferID]; with Credit bytes
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

// Append appends the whole frame of c to dst and returns the extended slice. If crc is true, the
// frame has a checksum. A Text that is too long is truncated, and bytes in it that are not UTF-8
// are replaced. The caller must ensure that each of c.Devices has a kind of 1 to 255 bytes and an
// index from 0 to MaxInt32.
func (c Control) Append(dst []byte, crc bool) []byte {
	start := len(dst)
	dst = Header{Kind: byte(c.Kind), CRC: crc}.Append(dst)
	if c.Kind.hasNumber() {
		dst = binary.LittleEndian.AppendUint64(dst, c.Number)
	}
	switch c.Kind {
	case Goodbye, Abort:
		dst = append(dst, cleanText(c.Text)...)
	case Targets:
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(c.Devices)))
		for _, d := range c.Devices {
			dst = append(append(dst, byte(len(d.Kind))), d.Kind...)
			dst = binary.LittleEndian.AppendUint32(dst, uint32(d.Index))
		}
	case Ready:
		dst = binary.LittleEndian.AppendUint16(dst, c.Lane)
		dst = append(dst, make([]byte, 6)...)
	}
	binary.LittleEndian.PutUint32(dst[start:], uint32(len(dst)-start-HeaderSize))
	if crc {
		dst = AppendChecksum(dst, start)
	}
	return dst
}

func (k ControlKind) hasNumber() bool {
	switch k {
	case WantRead, HaveRead, Targets, Abort, Cancel, Ready, Credit:
		return true
	}
	return false
}

// cleanText returns s with a question mark in place of each run of bytes that are not UTF-8, cut to
// at most MaxText bytes without splitting a character.
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

// DecodeControl decodes a Control from body, the whole body of a frame of this kind. For an unknown
// kind it returns a Control with only Kind set, which the caller must skip. The result does not
// alias body. If the body is invalid or exceeds limits, the error is an [*Error].
func DecodeControl(kind ControlKind, body []byte, limits Limits) (Control, error) {
	limits = limits.WithDefaults()
	c := Control{Kind: kind}
	if err := kind.checkSize(uint64(len(body)), limits); err != nil {
		return Control{}, err
	}
	if kind.hasNumber() {
		c.Number = binary.LittleEndian.Uint64(body)
		body = body[numberSize:]
	}
	switch kind {
	case Goodbye, Abort:
		if !utf8.Valid(body) {
			return Control{}, fault(kind.String(), "text", "not UTF-8")
		}
		c.Text = string(body)
	case Targets:
		var err error
		if c.Devices, err = decodeDevices(body, limits); err != nil {
			return Control{}, err
		}
	case Ready:
		c.Lane = binary.LittleEndian.Uint16(body)
		for _, b := range body[2:] {
			if b != 0 {
				return Control{}, fault(Ready.String(), "reserved", "% x, want 0", body[2:])
			}
		}
	}
	return c, nil
}

// sizes returns the smallest and the largest size in bytes that the body of a frame of kind k can
// have. limits must have no zero fields.
func (k ControlKind) sizes(limits Limits) (minimum, maximum uint64) {
	switch k {
	case WantRead, HaveRead, Cancel, Credit:
		return numberSize, numberSize
	case Goodbye:
		return 0, MaxText
	case Targets:
		return targetsFixed, limits.targets()
	case Abort:
		return numberSize, numberSize + MaxText
	case Ready:
		return readySize, readySize
	case Bulk, WantCredit:
		return 0, 0
	default:
		return 0, maxUnknown
	}
}

// checkSize returns an [*Error] if a body of kind k cannot have that size, and otherwise nil. limits
// must have no zero fields.
func (k ControlKind) checkSize(size uint64, limits Limits) error {
	switch minimum, maximum := k.sizes(limits); {
	case k == Targets && size > maximum:
		return exceeded(k.String(), "length", size, maximum)
	case size < minimum || size > maximum:
		return fault(k.String(), "length", "%d, want %d..%d", size, minimum, maximum)
	default:
		return nil
	}
}

// decodeDevices decodes p, the body of a TARGETS frame after the message number: the count of
// devices, 4 bytes, and the devices. p must have the count. The result does not alias p.
// decodeDevices allocates for no more devices than p can contain. If p is invalid or exceeds
// limits, the error is an [*Error].
func decodeDevices(p []byte, limits Limits) ([]device.Device, error) {
	count := binary.LittleEndian.Uint32(p)
	p = p[4:]
	switch {
	case count == 0:
		return nil, fault(Targets.String(), "count", "0")
	case count > uint32(limits.Tensors):
		return nil, exceeded(Targets.String(), "count", uint64(count), uint64(limits.Tensors))
	case int(count) > len(p)/(targetFixed+1):
		return nil, fault(Targets.String(), "count", "%d devices in %d bytes", count, len(p))
	}
	devices := make([]device.Device, count)
	var kinds kindCache
	for i := range devices {
		if len(p) == 0 || len(p) < targetFixed+int(p[0]) {
			return nil, fault(Targets.String(), "length", "truncated within a device")
		}
		n := int(p[0])
		index := binary.LittleEndian.Uint32(p[1+n:])
		switch {
		case n == 0:
			return nil, fault(Targets.String(), "device kind", "empty")
		case n > limits.Kind:
			return nil, fault(Targets.String(), "device kind", "%w: %d bytes, at most %d", ErrLimit, n, limits.Kind)
		case index > math.MaxInt32:
			return nil, fault(Targets.String(), "device index", "%d, want 0..%d", index, math.MaxInt32)
		}
		devices[i] = device.Device{Kind: kinds.intern(p[1 : 1+n]), Index: int(index)}
		p = p[targetFixed+n:]
	}
	if len(p) > 0 {
		return nil, fault(Targets.String(), "length", "%d bytes after the last device", len(p))
	}
	return devices, nil
}
