package codec

import (
	"encoding"
	"encoding/binary"
	"math"
	"reflect"
	"unsafe"
)

// Appender is a type with an encoding of its own. The method writes with the
// methods of the Encoder; it may have a value or a pointer as receiver, and the
// receiver is never nil.
type Appender interface {
	AppendTensorpipe(e *Encoder) error
}

// Parser reads what Appender wrote, the same in the same order, into a value
// that is zero. Its receiver is a pointer.
type Parser interface {
	ParseTensorpipe(d *Decoder) error
}

// ownFront is the size of the length in front of an own encoding.
const ownFront = 4

func compileOwn(p *plan) {
	p.own(p.typ.String(), func(e *Encoder, from unsafe.Pointer) error {
		return reflect.NewAt(p.typ, from).Interface().(Appender).AppendTensorpipe(e)
	}, func(d *Decoder, to unsafe.Pointer) error {
		return reflect.NewAt(p.typ, to).Interface().(Parser).ParseTensorpipe(d)
	})
}

// own describes values of which only the application knows what they are.
func (p *plan) own(name string, encode func(*Encoder, unsafe.Pointer) error, decode func(*Decoder, unsafe.Pointer) error) {
	p.schema.name = name
	p.leaf(kindOwn, func(e *Encoder, from unsafe.Pointer) error {
		return e.own(from, encode)
	}, func(d *Decoder, to unsafe.Pointer) error {
		zero(p.typ, to)
		return d.own(to, decode)
	})
}

func (e *Encoder) own(from unsafe.Pointer, encode func(*Encoder, unsafe.Pointer) error) error {
	if err := e.descend(); err != nil {
		return err
	}
	front := len(e.buf)
	e.buf = append(e.buf, 0, 0, 0, 0)
	if err := encode(e, from); err != nil {
		return err
	}
	if e.err != nil {
		return e.err
	}
	n := len(e.buf) - front - ownFront
	if uint64(n) > math.MaxUint32 {
		return fault(ErrLimit, "an own encoding of %d bytes", n)
	}
	binary.LittleEndian.PutUint32(e.buf[front:], uint32(n))
	e.depth--
	return nil
}

// own lets the application read no more than its own bytes, and no less.
func (d *Decoder) own(to unsafe.Pointer, decode func(*Decoder, unsafe.Pointer) error) error {
	n, err := d.ownLength()
	if err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	outer := d.data
	d.data = d.data[:d.pos+n]
	if err := decode(d, to); err != nil {
		return err
	}
	if d.err != nil {
		return d.err
	}
	if d.left() > 0 {
		return corrupt("%d bytes of an own encoding were not read", d.left())
	}
	d.data = outer
	d.leave()
	return nil
}

// hook describes a type by the functions of the application.
func (c *compiler) hook(p *plan, h hook) {
	if p.typ.Kind() != reflect.Pointer {
		p.own(h.name, h.encode, h.decode)
		return
	}
	p.schema.kind = kindPointer
	p.schema.elem = leafSchema(kindOwn, h.name)
	p.encode = func(e *Encoder, from unsafe.Pointer) error {
		return e.object(p.typ, *(*unsafe.Pointer)(from), func(e *Encoder, _ unsafe.Pointer) error {
			return e.own(from, h.encode)
		})
	}
	decode := func(d *Decoder, _ *schema, to unsafe.Pointer) error {
		if err := d.own(to, h.decode); err != nil {
			return err
		}
		if *(*unsafe.Pointer)(to) == nil {
			return fault(ErrType, "the hook %q made no value", h.name)
		}
		return nil
	}
	p.decode = func(d *Decoder, s *schema, to unsafe.Pointer) error { return d.object(p, s, to, decode) }
}

// compileBinary uses encoding.BinaryMarshaler and its counterpart.
func compileBinary(p *plan) {
	p.leaf(kindBinary, func(e *Encoder, from unsafe.Pointer) error {
		text, err := reflect.NewAt(p.typ, from).Interface().(encoding.BinaryMarshaler).MarshalBinary()
		if err == nil {
			e.Bytes(text)
		}
		return err
	}, func(d *Decoder, to unsafe.Pointer) error {
		text, err := d.text()
		if err != nil {
			return err
		}
		if err := d.spend(len(text)); err != nil {
			return err
		}
		zero(p.typ, to)
		return reflect.NewAt(p.typ, to).Interface().(encoding.BinaryUnmarshaler).UnmarshalBinary(text)
	})
}
