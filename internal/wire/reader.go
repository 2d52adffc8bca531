package wire

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/internal/invariants"
	"github.com/tensorpipe-go/tensorpipe/internal/nop"
)

// reader decodes one message. Like the embedded Decoder it keeps its first error. field is the member
// that was read when the error occurred.
type reader struct {
	nop.Decoder
	limits  Limits
	message string
	field   string
}

func newReader(message string, p []byte, limits Limits) reader {
	r := reader{Decoder: nop.NewDecoder(p), limits: limits.WithDefaults(), message: message}
	r.within(int64(len(p)), r.limits.Frame, "bytes")
	return r
}

// at records field as the member that is read next, for errors. After an error it does nothing.
func (r *reader) at(field string) {
	if r.Err() == nil {
		r.field = field
	}
}

// within reports whether n is at most limit. If not it fails r with an error that matches ErrLimit;
// unit is what n counts.
func (r *reader) within(n, limit int64, unit string) bool {
	if n <= limit {
		return true
	}
	r.Fail(fmt.Errorf("%w: %d %s, at most %d", ErrLimit, n, unit, limit))
	return false
}

// list reads the header of an array and returns the number n of its elements. It fails r and returns 0
// if n exceeds limit, or if the remaining bytes cannot contain n elements of at least minSize bytes.
func (r *reader) list(minSize, limit int) int {
	n := r.Array(minSize)
	if !r.within(int64(n), int64(limit), "elements") {
		return 0
	}
	return n
}

// text reads a name, an address or the text of a descriptor, at most Limits.Text bytes. It returns ""
// after an error.
func (r *reader) text() string {
	p := r.Bytes()
	if !r.within(int64(len(p)), int64(r.limits.Text), "bytes") {
		return ""
	}
	return string(p)
}

// end finishes the message, after which no bytes may remain. It returns the first error of r as an
// [*Error], or nil.
func (r *reader) end() error {
	r.at("")
	if err := r.Finish(); err != nil {
		return &Error{Message: r.message, Field: r.field, Err: err}
	}
	return nil
}

// result finishes the message of r and returns m. After an error it returns the zero value of M and the
// first error of r as an [*Error].
func result[M any](r *reader, m M) (M, error) {
	if err := r.end(); err != nil {
		var none M
		return none, err
	}
	return m, nil
}

// appendMap appends the encoding of m to dst and returns the extended slice. The entries are sorted by
// key, so that equal messages have equal encodings. compare orders the keys; appendKey and appendValue
// append one key and one value.
func appendMap[K comparable, V any](dst []byte, m map[K]V, compare func(a, b K) int,
	appendKey func([]byte, K) []byte, appendValue func([]byte, V) []byte) []byte {
	dst = nop.AppendMapHeader(dst, len(m))
	for _, k := range slices.SortedFunc(maps.Keys(m), compare) {
		dst = appendValue(appendKey(dst, k), m[k])
	}
	return dst
}

// readMap reads a map whose entries take at least minSize bytes each. key and value read one key and
// one value. Of several entries with equal keys readMap keeps the first. It returns nil if the map is
// empty or after an error. If the map has more than Limits.Entries entries it fails r. It allocates
// memory for the entries that it has read, not for the announced number.
func readMap[K comparable, V any](r *reader, minSize int, key func(*reader) K, value func(*reader) V) map[K]V {
	n := r.Map(minSize)
	if n == 0 || !r.within(int64(n), int64(r.limits.Entries), "entries") {
		return nil
	}
	m := map[K]V{}
	for range n {
		k, v := key(r), value(r)
		if r.Err() != nil {
			return nil
		}
		if _, duplicate := m[k]; !duplicate {
			m[k] = v
		}
	}
	return m
}

const (
	minDevice = 6 // minimum size of a device: b9 02, bd 01 x, 00

	kindCUDA = "cuda" // a kind that needs no allocation, like that of the CPU
)

// CheckDevice returns an error if d cannot be sent, and otherwise nil. d needs a kind within the
// limits, and an index from 0 to 1<<31-1. The error matches ErrLimit if the kind is too long. Append
// does not check devices.
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

// device reads a device and returns it. It fails r if the kind is empty or too long, or if the index is
// negative. If the kind is "cpu", "cuda" or the kind of last, device allocates nothing for it.
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

// newDevice reads and returns a device as device does, without an earlier device whose kind could be
// reused.
func (r *reader) newDevice() device.Device { return r.device(device.Device{}) }

func compareDevices(a, b device.Device) int {
	return cmp.Or(strings.Compare(a.Kind, b.Kind), cmp.Compare(a.Index, b.Index))
}
