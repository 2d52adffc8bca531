// Package device identifies where tensor memory is and when it is valid.
//
// A [Device] names a memory device: a kind ("cpu", "cuda", or one of a third party) and an index. A
// [Buffer] is memory on a device plus the [Stream] on which the memory is valid. An application
// lists the [Kind] values that it uses; this package has no registry.
package device

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// KindCPU is the kind of ordinary host memory.
const KindCPU = "cpu"

// Device names one memory device. The zero Device names none: as the target of a tensor it means
// that the receiver chooses.
type Device struct {
	Kind  string
	Index int
}

// CPU returns cpu:0, the device of host memory, which every process has.
func CPU() Device { return Device{Kind: KindCPU} }

// IsZero reports whether d is the zero Device, which names no device.
func (d Device) IsZero() bool { return d == Device{} }

// String returns d as kind:index, or "any" for the zero Device.
func (d Device) String() string {
	if d.IsZero() {
		return "any"
	}
	return d.Kind + ":" + strconv.Itoa(d.Index)
}

// Parse returns the device that s names in the form kind:index, as in "cpu:0". A text without a
// colon is a kind, with the index 0. The index must be a decimal number from 0 to 2147483647. If s
// has another form, no kind, or the kind "any", Parse returns the zero Device and a [*ParseError].
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

// MarshalText implements [encoding.TextMarshaler], also for JSON. It returns d.String() as new
// bytes, for example "cpu:0", or "any" for the zero Device. The error is always nil.
func (d Device) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler], also for JSON. It sets d to the device that
// text names: the zero Device for "any", and otherwise the result of [Parse]. The error is a
// [*ParseError]; d is then the zero Device. It does not retain text.
func (d *Device) UnmarshalText(text []byte) (err error) {
	if string(text) == "any" {
		*d = Device{}
		return nil
	}
	*d, err = Parse(string(text))
	return err
}

// Errors about the use of a kind. They are wrapped with the call and the devices; test for them
// with [errors.Is].
var (
	// ErrDevice: the kind has no such device, see Kind.Devices.
	ErrDevice = errors.New("no such device of this kind")

	// ErrMemory: the memory belongs to a kind or device that the call cannot handle. Copy it through
	// host memory.
	ErrMemory = errors.New("memory of another kind or device")

	// ErrStream: the stream belongs to another kind or device than the memory.
	ErrStream = errors.New("stream of another kind or device")

	// ErrSize: the size is negative.
	ErrSize = errors.New("size is negative")
)

// ParseError reports why a text is no device.
type ParseError struct {
	Text   string // the parsed text
	Reason string // the violation, and the expected form
}

func (e *ParseError) Error() string {
	return fmt.Sprintf("device: %q %s", e.Text, e.Reason)
}

// LengthError reports that the buffers of a copy differ in size; use [Buffer.Slice] on one of them.
type LengthError struct {
	Dst, Src int // in bytes
}

func (e *LengthError) Error() string {
	return fmt.Sprintf("device: copy of %d bytes into a buffer of %d", e.Src, e.Dst)
}
