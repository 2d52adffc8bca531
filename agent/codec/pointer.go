package codec

import (
	"reflect"
	"unsafe"
)

// object is what a pointer points to. The same address may be that of a struct
// and of its first field.
type object struct {
	address unsafe.Pointer
	typ     reflect.Type
}

func (c *compiler) pointer(p *plan) (err error) {
	p.schema.kind = kindPointer
	if p.elem, err = c.plan(p.typ.Elem()); err != nil {
		return err
	}
	p.schema.elem = p.elem.schema
	p.encode = func(e *Encoder, from unsafe.Pointer) error {
		return e.object(p.typ, *(*unsafe.Pointer)(from), p.elem.encode)
	}
	decode := p.decodePointee
	p.decode = func(d *Decoder, s *schema, to unsafe.Pointer) error { return d.object(p, s, to, decode) }
	return nil
}

// decodePointee reads what p points to, to new memory.
func (p *plan) decodePointee(d *Decoder, s *schema, to unsafe.Pointer) error {
	if err := d.spend(int(p.elem.typ.Size()) + 16); err != nil {
		return err
	}
	v := reflect.New(p.elem.typ).UnsafePointer()
	if err := p.elem.decode(d, s.elem, v); err != nil {
		return err
	}
	*(*unsafe.Pointer)(to) = v
	return nil
}

// object writes what a pointer of type t points to when it comes for the first
// time, and its number after that.
func (e *Encoder) object(t reflect.Type, address unsafe.Pointer, encode func(*Encoder, unsafe.Pointer) error) error {
	if address == nil {
		e.Uint(0)
		return nil
	}
	o := object{address, t}
	if n, ok := e.objects.find(o); ok {
		if e.unfinished[n] {
			return fault(ErrCycle, "by way of a %v", t)
		}
		e.Uint(2*uint64(n) + 2)
		return nil
	}
	n := e.objects.add(o)
	e.unfinished = append(e.unfinished, true)
	e.Uint(2*uint64(n) + 1)
	if err := e.descend(); err != nil {
		return err
	}
	if err := encode(e, address); err != nil {
		return err
	}
	e.depth--
	e.unfinished[n] = false
	return nil
}
