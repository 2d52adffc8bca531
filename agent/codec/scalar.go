package codec

import (
	"encoding/binary"
	"math"
	"reflect"
	"slices"
	"unsafe"
)

func compileScalar(p *plan) error {
	switch p.typ.Kind() {
	case reflect.Bool:
		p.leaf(kindBool, encodeBool, decodeBool)
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
		p.leaf(kindString, encodeString, decodeString)
	default: // chan, func, uintptr, unsafe.Pointer
		return fault(ErrUnsupported, "%v", p.typ)
	}
	return nil
}

func encodeBool(e *Encoder, p unsafe.Pointer) error {
	e.Bool(*(*bool)(p))
	return nil
}

func decodeBool(d *Decoder, p unsafe.Pointer) (err error) {
	*(*bool)(p), err = d.Bool()
	return err
}

func leafInt[T int | int8 | int16 | int32 | int64](p *plan) {
	t := p.typ
	p.leaf(kindInt, func(e *Encoder, at unsafe.Pointer) error {
		e.Int(int64(*(*T)(at)))
		return nil
	}, func(d *Decoder, at unsafe.Pointer) error {
		v, err := d.varint()
		if int64(T(v)) != v {
			return fault(ErrType, "the number %d is no %v", v, t)
		}
		*(*T)(at) = T(v)
		return err
	})
}

func leafUint[T uint | uint8 | uint16 | uint32 | uint64](p *plan) {
	t := p.typ
	p.leaf(kindUint, func(e *Encoder, at unsafe.Pointer) error {
		e.Uint(uint64(*(*T)(at)))
		return nil
	}, func(d *Decoder, at unsafe.Pointer) error {
		v, err := d.uvarint()
		if uint64(T(v)) != v {
			return fault(ErrType, "the number %d is no %v", v, t)
		}
		*(*T)(at) = T(v)
		return err
	})
}

// leafFloats describes n floats, of which complex numbers have two.
func leafFloats[T float32 | float64](p *plan, k kind, n int) {
	p.leaf(k, func(e *Encoder, at unsafe.Pointer) error {
		e.buf = appendFloats(e.buf, unsafe.Slice((*T)(at), n))
		return nil
	}, func(d *Decoder, at unsafe.Pointer) error {
		return readFloats(d, unsafe.Slice((*T)(at), n))
	})
}

// appendFloats appends the bits of floats, the lowest byte first.
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
	p, err := d.take(len(values) * int(unsafe.Sizeof(T(0))))
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

func encodeString(e *Encoder, p unsafe.Pointer) error {
	e.String(*(*string)(p))
	return nil
}

func decodeString(d *Decoder, p unsafe.Pointer) (err error) {
	*(*string)(p), err = d.String()
	return err
}
