package native

import (
	"encoding/binary"
	"math"
	"unicode/utf8"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// DecodeControl decodes a Control of that kind from the whole of body. A kind
// that this version does not know decodes to a Control of that kind and nothing
// else, to be skipped. Nothing of the result points into body.
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
	var err error
	switch kind {
	case Goodbye, Abort:
		c.Text, err = decodeText(kind, body)
	case Targets:
		c.Devices, err = decodeDevices(body, limits)
	case Ready:
		c.Lane, err = decodeLane(body)
	}
	if err != nil {
		return Control{}, err
	}
	return c, nil
}

// sizes are the least and the most bytes that a body of kind k has.
func (k ControlKind) sizes(limits Limits) (least, most uint64) {
	switch k {
	case WantRead, HaveRead, Cancel:
		return numberSize, numberSize
	case Goodbye:
		return 0, MaxText
	case Targets:
		return targetsFixed, limits.targets()
	case Abort:
		return numberSize, numberSize + MaxText
	case Ready:
		return readySize, readySize
	case Bulk:
		return 0, 0
	default:
		return 0, maxUnknown
	}
}

// checkSize compares the size of a body with those that its kind can have.
func (k ControlKind) checkSize(size uint64, limits Limits) error {
	switch least, most := k.sizes(limits); {
	case k == Targets && size > most:
		return exceeded(k.String(), "length", size, most)
	case size < least || size > most:
		return fault(k.String(), "length", "%d, want %d..%d", size, least, most)
	default:
		return nil
	}
}

func decodeText(kind ControlKind, p []byte) (string, error) {
	if !utf8.Valid(p) {
		return "", fault(kind.String(), "text", "not UTF-8")
	}
	return string(p), nil
}

func decodeLane(p []byte) (uint16, error) {
	for _, b := range p[2:] {
		if b != 0 {
			return 0, fault(Ready.String(), "reserved", "% x, want 0", p[2:])
		}
	}
	return binary.LittleEndian.Uint16(p), nil
}

// decodeDevices reads the count of devices and each of them, and allocates for
// no more than the bytes can hold.
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
		n, err := decodeDevice(&devices[i], p, &kinds, limits.Kind)
		if err != nil {
			return nil, err
		}
		p = p[n:]
	}
	if len(p) > 0 {
		return nil, fault(Targets.String(), "length", "%d bytes behind the last device", len(p))
	}
	return devices, nil
}

// decodeDevice returns the number of bytes that a device takes.
func decodeDevice(d *device.Device, p []byte, kinds *kindCache, limit int) (int, error) {
	if len(p) == 0 || len(p) < targetFixed+int(p[0]) {
		return 0, fault(Targets.String(), "length", "it ends within a device")
	}
	n := int(p[0])
	index := binary.LittleEndian.Uint32(p[1+n:])
	switch {
	case n == 0:
		return 0, fault(Targets.String(), "device kind", "empty")
	case n > limit:
		return 0, fault(Targets.String(), "device kind", "%w: %d bytes, at most %d", ErrLimit, n, limit)
	case index > math.MaxInt32:
		return 0, fault(Targets.String(), "device index", "%d, want 0..%d", index, math.MaxInt32)
	}
	*d = device.Device{Kind: kinds.intern(p[1 : 1+n]), Index: int(index)}
	return targetFixed + n, nil
}
