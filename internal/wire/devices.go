package wire

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
	"github.com/tensorpipe-go/tensorpipe/internal/nop"
)

const (
	minDevice = 6 // least bytes of a device: b9 02, bd 01 x, 00

	kindCUDA = "cuda" // the kind that every peer may name, beside the CPU's
)

// CheckDevice says whether d can be sent: it needs a kind, of a length within
// the limits, and an index that fits 31 bits. Call it for devices that a user
// gave; Append does not check them.
func (l Limits) CheckDevice(d device.Device) error {
	l = l.WithDefaults()
	switch {
	case d.Kind == "":
		return fmt.Errorf("wire: device %d has no kind", d.Index)
	case len(d.Kind) > l.Kind:
		return fmt.Errorf("wire: device kind of %d bytes: %w of %d", len(d.Kind), ErrLimit, l.Kind)
	case d.Index < 0 || d.Index > math.MaxInt32:
		return fmt.Errorf("wire: device %s: the index must be within 0..%d", d, math.MaxInt32)
	}
	return nil
}

func appendDevice(dst []byte, d device.Device) []byte {
	invariants.Check(d.Kind != "" && d.Index >= 0 && d.Index <= math.MaxInt32,
		"wire: device that cannot be sent")
	dst = nop.AppendString(nop.AppendStructHeader(dst, 2), d.Kind)
	return nop.AppendInt(dst, int64(d.Index))
}

// device reads a device. Its kind is not allocated again if it is a common one
// or that of last.
func (r *reader) device(last device.Device) device.Device {
	r.Struct(2)
	kind := r.kind(last.Kind)
	index := r.Int32()
	if index < 0 {
		r.Failf("device index %d is negative", index)
	}
	return device.Device{Kind: kind, Index: int(index)}
}

func (r *reader) kind(last string) string {
	p := r.Bytes()
	if len(p) == 0 {
		r.Failf("device kind is empty")
		return ""
	}
	if !r.within(int64(len(p)), int64(r.limits.Kind), "bytes") {
		return ""
	}
	switch string(p) {
	case last:
		return last
	case device.KindCPU:
		return device.KindCPU
	case kindCUDA:
		return kindCUDA
	}
	return string(p)
}

// newDevice reads a device as the key of a map.
func (r *reader) newDevice() device.Device { return r.device(device.Device{}) }

func compareDevices(a, b device.Device) int {
	return cmp.Or(strings.Compare(a.Kind, b.Kind), cmp.Compare(a.Index, b.Index))
}
