package codec

import (
	"fmt"
	"reflect"
	"unsafe"
)

// sliceHeader is what a slice is in memory.
type sliceHeader struct {
	data     unsafe.Pointer
	len, cap int
}

func (c *compiler) slice(p *plan) (err error) {
	if e := p.typ.Elem(); e.Kind() == reflect.Uint8 && !hasEncoding(c, e) {
		p.leaf(kindBytes, encodeBytes, decodeBytes)
		return nil
	}
	p.schema.kind = kindSlice
	if p.elem, err = c.plan(p.typ.Elem()); err != nil {
		return at(err, "[]")
	}
	p.schema.elem = p.elem.schema
	p.encode, p.decode = p.encodeSlice, p.decodeSlice
	return nil
}

// hasEncoding reports whether a type is encoded in another way than its kind is.
func hasEncoding(c *compiler, t reflect.Type) bool {
	_, hooked := c.hooks[t]
	to := reflect.PointerTo(t)
	return hooked || to.Implements(appenderType) || to.Implements(marshalerType) && to.Implements(unmarshalerType)
}

func encodeBytes(e *Encoder, p unsafe.Pointer) error {
	v := *(*[]byte)(p)
	if v == nil {
		e.Uint(0)
		return nil
	}
	e.Uint(uint64(len(v)) + 1)
	e.buf = append(e.buf, v...)
	return nil
}

func decodeBytes(d *Decoder, to unsafe.Pointer) error {
	n, isNil, err := d.length(1)
	if err != nil {
		return err
	}
	if isNil {
		*(*[]byte)(to) = nil
		return nil
	}
	from, err := d.take(n)
	if err != nil {
		return err
	}
	if err := d.spend(n); err != nil {
		return err
	}
	*(*[]byte)(to) = append(make([]byte, 0, n), from...)
	return nil
}

func (p *plan) encodeSlice(e *Encoder, from unsafe.Pointer) error {
	h := (*sliceHeader)(from)
	if h.data == nil {
		e.Uint(0)
		return nil
	}
	e.Uint(uint64(h.len) + 1)
	if h.len == 0 || p.elem.schema.width == 0 {
		return nil
	}
	open, err := e.enter(h.data, h.len, p.typ)
	if err != nil {
		return err
	}
	if err := p.elem.encodeAll(e, h.data, h.len); err != nil {
		return err
	}
	e.leave(open)
	return nil
}

// decodeSlice never uses the memory of the slice that is there already, which
// others may still read.
func (p *plan) decodeSlice(d *Decoder, s *schema, to unsafe.Pointer) error {
	n, isNil, err := d.length(s.elem.width)
	v := reflect.NewAt(p.typ, to).Elem()
	v.SetZero()
	if err != nil || isNil {
		return err
	}
	if n == 0 {
		v.Set(reflect.MakeSlice(p.typ, 0, 0))
		return nil
	}
	if err := d.spendElements(n, int(p.elem.typ.Size())); err != nil {
		return err
	}
	v.Grow(n)
	v.SetLen(n)
	if s.elem.width == 0 {
		return nil
	}
	if err := d.enter(); err != nil {
		return err
	}
	err = p.elem.decodeAll(d, s.elem, (*sliceHeader)(to).data, n)
	d.leave()
	return err
}

func (c *compiler) array(p *plan) (err error) {
	p.schema.kind, p.schema.n = kindArray, p.typ.Len()
	if p.elem, err = c.plan(p.typ.Elem()); err != nil {
		return at(err, "[]")
	}
	p.schema.elem = p.elem.schema
	n := p.schema.n
	if p.typ.Elem().Kind() == reflect.Uint8 && p.elem.schema.kind == kindUint {
		p.schema.elem = leafSchema(kindByte, "")
		p.encode = func(e *Encoder, from unsafe.Pointer) error {
			e.buf = append(e.buf, unsafe.Slice((*byte)(from), n)...)
			return nil
		}
		p.decode = func(d *Decoder, _ *schema, to unsafe.Pointer) error {
			from, err := d.take(n)
			copy(unsafe.Slice((*byte)(to), n), from)
			return err
		}
		return nil
	}
	p.encode = func(e *Encoder, from unsafe.Pointer) error { return p.elem.encodeAll(e, from, n) }
	p.decode = func(d *Decoder, s *schema, to unsafe.Pointer) error {
		if s.elem.width == 0 {
			zero(p.typ, to)
			return nil
		}
		return p.elem.decodeAll(d, s.elem, to, n)
	}
	return nil
}

// encodeAll appends n values that lie behind each other.
func (p *plan) encodeAll(e *Encoder, from unsafe.Pointer, n int) error {
	switch p.schema.kind {
	case kindFloat32, kindComplex64:
		e.buf = appendFloats(e.buf, unsafe.Slice((*float32)(from), n*p.schema.width/4))
		return nil
	case kindFloat64, kindComplex128:
		e.buf = appendFloats(e.buf, unsafe.Slice((*float64)(from), n*p.schema.width/8))
		return nil
	}
	size := p.typ.Size()
	for i := range n {
		if err := p.encode(e, unsafe.Add(from, uintptr(i)*size)); err != nil {
			return at(err, fmt.Sprintf("[%d]", i))
		}
	}
	return nil
}

// decodeAll reads n values to memory in which they lie behind each other.
func (p *plan) decodeAll(d *Decoder, s *schema, to unsafe.Pointer, n int) error {
	switch p.schema.kind {
	case kindFloat32, kindComplex64:
		return readFloats(d, unsafe.Slice((*float32)(to), n*p.schema.width/4))
	case kindFloat64, kindComplex128:
		return readFloats(d, unsafe.Slice((*float64)(to), n*p.schema.width/8))
	}
	size := p.typ.Size()
	for i := range n {
		if err := p.decode(d, s, unsafe.Add(to, uintptr(i)*size)); err != nil {
			return at(err, fmt.Sprintf("[%d]", i))
		}
	}
	return nil
}
