// Package device says where tensor memory lives and when it is valid.
//
// A [Device] names a piece of memory hardware: a kind ("cpu", "cuda", or one
// that a third party adds) and an index. A [Buffer] is memory on a device plus
// the [Stream] on which that memory is valid. Kinds are plug-ins: an
// application lists the [Kind] values it wants to use; this package keeps no
// registry.
package device

import (
	"strconv"
	"strings"
)

// KindCPU is the kind of ordinary host memory.
const KindCPU = "cpu"

// Device names one memory device. The zero Device names none: as the target of
// a tensor it means "the receiver chooses".
type Device struct {
	Kind  string
	Index int
}

// CPU is host memory, the device that every process has.
func CPU() Device { return Device{Kind: KindCPU} }

// IsZero reports whether d names no device.
func (d Device) IsZero() bool { return d == Device{} }

// String prints d as kind:index, or "any" for the zero Device.
func (d Device) String() string {
	if d.IsZero() {
		return "any"
	}
	return d.Kind + ":" + strconv.Itoa(d.Index)
}

// Parse reads the form that String prints. A missing index means 0. The index
// must fit the int32 that TensorPipe sends. The error is a [*ParseError].
func Parse(s string) (Device, error) {
	kind, index, found := strings.Cut(s, ":")
	if kind == "" || kind == "any" {
		return Device{}, &ParseError{Text: s, Reason: "has no kind (want kind:index, as in cpu:0)"}
	}
	if !found {
		return Device{Kind: kind}, nil
	}
	n, err := strconv.ParseUint(index, 10, 31)
	if err != nil {
		return Device{}, &ParseError{Text: s, Reason: "has a bad index (want 0..2147483647)"}
	}
	return Device{Kind: kind, Index: int(n)}, nil
}

// MarshalText gives the form that String prints, also in JSON.
func (d Device) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what MarshalText gives.
func (d *Device) UnmarshalText(text []byte) (err error) {
	if string(text) == "any" {
		*d = Device{}
		return nil
	}
	*d, err = Parse(string(text))
	return err
}
