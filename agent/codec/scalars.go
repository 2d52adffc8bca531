package codec

import (
	"encoding/binary"
	"math"
	"reflect"
	"slices"
	"time"
	"unsafe"
)

func compileScalar(p *plan) error {
	switch p.typ.Kind() {
	case reflect.Bool:
		p.leaf(kindBool, func(e *Encoder, from unsafe.Pointer) error {
			e.WriteBool(*(*bool)(from))
			return nil
		}, func(d *Decoder, to unsafe.Pointer) (err error) {
			*(*bool)(to), err = d.ReadBool()
			return err
		})
	case reflect.Int:
		leafInt[int](p)
	case reflect.Int8:
		leafInt[int8](p)
	case reflect.Int16:
		leafInt[int16](p)
	case reflect.Int32:
		leafInt[int32](p)
	case reflect.Int64:
		leafInt[int64](p)
	case reflect.Uint:
		leafUint[uint](p)
	case reflect.Uint8:
		leafUint[uint8](p)
	case reflect.Uint16:
		leafUint[uint16](p)
	case reflect.Uint32:
		leafUint[uint32](p)
	case reflect.Uint64:
		leafUint[uint64](p)
	case reflect.Float32:
		leafFloats[float32](p, kindFloat32, 1)
	case reflect.Float64:
		leafFloats[float64](p, kindFloat64, 1)
	case reflect.Complex64:
		leafFloats[float32](p, kindComplex64, 2)
	case reflect.Complex128:
		leafFloats[float64](p, kindComplex128, 2)
	case reflect.String:
		p.leaf(kindString, func(e *Encoder, from unsafe.Pointer) error {
			e.WriteString(*(*string)(from))
			return nil
		}, func(d *Decoder, to unsafe.Pointer) (err error) {
			*(*string)(to), err = d.ReadString()
			return err
		})
	default: // chan, func, uintptr, unsafe.Pointer
		return errorf(ErrUnsupported, "%v", p.typ)
	}
	return nil
}

func leafInt[T int | int8 | int16 | int32 | int64](p *plan) {
	t := p.typ
	p.leaf(kindInt, func(e *Encoder, at unsafe.Pointer) error {
		e.WriteInt(int64(*(*T)(at)))
		return nil
	}, func(d *Decoder, at unsafe.Pointer) error {
		v, err := d.varint()
		if int64(T(v)) != v {
			return errorf(ErrType, "the number %d does not fit in %v", v, t)
		}
		*(*T)(at) = T(v)
		return err
	})
}

func leafUint[T uint | uint8 | uint16 | uint32 | uint64](p *plan) {
	t := p.typ
	p.leaf(kindUint, func(e *Encoder, at unsafe.Pointer) error {
		e.WriteUint(uint64(*(*T)(at)))
		return nil
	}, func(d *Decoder, at unsafe.Pointer) error {
		v, err := d.uvarint()
		if uint64(T(v)) != v {
			return errorf(ErrType, "the number %d does not fit in %v", v, t)
		}
		*(*T)(at) = T(v)
		return err
	})
}

// leafFloats sets the schema of p to kind k, and its functions to ones that encode and decode n
// numbers of type T: one for a float, two for a complex number.
func leafFloats[T float32 | float64](p *plan, k kind, n int) {
	p.leaf(k, func(e *Encoder, at unsafe.Pointer) error {
		e.buf = appendFloats(e.buf, unsafe.Slice((*T)(at), n))
		return nil
	}, func(d *Decoder, at unsafe.Pointer) error {
		return readFloats(d, unsafe.Slice((*T)(at), n))
	})
}

// appendFloats appends the bits of values to dst in little endian order and returns the extended
// slice.
func appendFloats[T float32 | float64](dst []byte, values []T) []byte {
	start, size := len(dst), len(values)*int(unsafe.Sizeof(T(0)))
	dst = slices.Grow(dst, size)[:start+size]
	to := dst[start:]
	switch values := any(values).(type) {
	case []float32:
		for i, v := range values {
			binary.LittleEndian.PutUint32(to[4*i:], math.Float32bits(v))
		}
	case []float64:
		for i, v := range values {
			binary.LittleEndian.PutUint64(to[8*i:], math.Float64bits(v))
		}
	}
	return dst
}

func readFloats[T float32 | float64](d *Decoder, values []T) error {
	p, err := d.next(len(values) * int(unsafe.Sizeof(T(0))))
	if err != nil {
		return err
	}
	switch values := any(values).(type) {
	case []float32:
		for i := range values {
			values[i] = math.Float32frombits(binary.LittleEndian.Uint32(p[4*i:]))
		}
	case []float64:
		for i := range values {
			values[i] = math.Float64frombits(binary.LittleEndian.Uint64(p[8*i:]))
		}
	}
	return nil
}

// Forms of an encoded time zone.
const (
	zoneUTC    = 0
	zoneOffset = 1 // seconds east of UTC follow
)

// encodeTime appends the time.Time at address p to the message: seconds, nanoseconds, and the
// offset of its zone from UTC, but neither the name of the zone nor the monotonic clock reading.
// The error is always nil.
func encodeTime(e *Encoder, p unsafe.Pointer) error {
	t := *(*time.Time)(p)
	e.WriteInt(t.Unix())
	e.WriteUint(uint64(t.Nanosecond()))
	if t.Location() == time.UTC {
		e.buf = append(e.buf, zoneUTC)
		return nil
	}
	_, offset := t.Zone()
	e.buf = binary.AppendVarint(append(e.buf, zoneOffset), int64(offset))
	return nil
}

func decodeTime(d *Decoder, p unsafe.Pointer) error {
	seconds, err := d.varint()
	if err != nil {
		return err
	}
	nanoseconds, err := d.uvarint()
	if err != nil {
		return err
	}
	if nanoseconds >= uint64(time.Second) {
		return corruptf("time with %d nanoseconds", nanoseconds)
	}
	t := time.Unix(seconds, int64(nanoseconds))
	zone, err := d.zone(t)
	if err != nil {
		return err
	}
	*(*time.Time)(p) = t.In(zone)
	return nil
}

// zone decodes the time zone that follows the time t in the message. The result is time.UTC, or
// time.Local if the local zone has the decoded offset at t, or else a new zone without a name. The
// error matches ErrCorrupt or ErrLimit; the result must then not be used.
func (d *Decoder) zone(t time.Time) (*time.Location, error) {
	form, err := d.byte()
	if err != nil || form == zoneUTC {
		return time.UTC, err
	}
	offset, err := d.varint()
	if err != nil {
		return nil, err
	}
	const day = 24 * 60 * 60
	if form != zoneOffset || offset < -7*day || offset > 7*day {
		return nil, corruptf("time with the zone %d, %d", form, offset)
	}
	if _, here := t.Local().Zone(); int64(here) == offset {
		return time.Local, nil
	}
	return time.FixedZone("", int(offset)), d.charge(256)
}
