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

// at sets r.field, the member that is read next, for the text of errors. After the first error of r
// it does nothing, so that the error keeps the member at which it occurred.
func (r *reader) at(field string) {
	if r.Err() == nil {
		r.field = field
	}
}

// within reports whether n is at most limit. If it is not, within fails r with an error that
// matches ErrLimit; unit is the unit of n for the error's text, such as "bytes".
func (r *reader) within(n, limit int64, unit string) bool {
	if n <= limit {
		return true
	}
	r.Fail(fmt.Errorf("%w: %d %s, at most %d", ErrLimit, n, unit, limit))
	return false
}

// list reads the header of an array and returns n, the number of its elements, which the caller
// then reads. If n exceeds limit, or the remaining bytes cannot contain n elements of at least
// minSize bytes each, it fails r and returns 0.
func (r *reader) list(minSize, limit int) int {
	n := r.Array(minSize)
	if !r.within(int64(n), int64(limit), "elements") {
		return 0
	}
	return n
}

// text reads and returns a string: a name, an address or the text of a descriptor. If it has more
// than Limits.Text bytes, text fails r. After an error of r it returns "".
func (r *reader) text() string {
	p := r.Bytes()
	if !r.within(int64(len(p)), int64(r.limits.Text), "bytes") {
		return ""
	}
	return string(p)
}

// end checks that r has read the whole message. It returns nil if no error has occurred and no
// bytes remain. Otherwise it returns the first error of r as an [*Error].
func (r *reader) end() error {
	r.at("")
	if err := r.Finish(); err != nil {
		return &Error{Message: r.message, Field: r.field, Err: err}
	}
	return nil
}

// result checks that r has read the whole message. It returns m and nil if no error has occurred
// and no bytes remain. Otherwise it returns the zero value of M and the first error of r as an
// [*Error].
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

// readMap reads a map and returns it, or nil if it is empty or after an error of r. key and value
// read one key and one value. An entry takes at least minSize bytes. Of several entries with equal
// keys readMap keeps the first. If the map has more than Limits.Entries entries, it fails r. It
// allocates memory for the entries that it has read, not for the announced number.
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

// CheckDevice returns nil if d can be encoded: it has a kind of 1 to l.Kind bytes and an index from
// 0 to 1<<31-1. Otherwise it returns an error, which matches ErrLimit if the kind is too long.
// Callers of Append check devices with it, because Append does not.
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

// device reads a device and returns it. It fails r if the kind is empty or too long, or if the
// index is negative. It allocates a string for the kind unless the kind is "cpu", "cuda" or that of
// last.
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

// newDevice reads a device and returns it. It fails r if the kind is empty or too long, or if the
// index is negative.
func (r *reader) newDevice() device.Device { return r.device(device.Device{}) }

func compareDevices(a, b device.Device) int {
	return cmp.Or(strings.Compare(a.Kind, b.Kind), cmp.Compare(a.Index, b.Index))
}
