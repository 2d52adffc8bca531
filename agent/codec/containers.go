package codec

import (
	"fmt"
	"reflect"
	"unsafe"
)

// sliceHeader is the memory layout of a slice.
type sliceHeader struct {
	data     unsafe.Pointer
	len, cap int
}

func (c *compiler) slice(p *plan) (err error) {
	elem, to := p.typ.Elem(), reflect.PointerTo(p.typ.Elem())
	_, hooked := c.hooks[elem]
	custom := hooked || to.Implements(appenderType) || to.Implements(marshalerType) && to.Implements(unmarshalerType)
	if elem.Kind() == reflect.Uint8 && !custom {
		p.leaf(kindBytes, encodeBytes, decodeBytes)
		return nil
	}
	p.schema.kind = kindSlice
	if p.elem, err = c.plan(p.typ.Elem()); err != nil {
		return addSegment(err, "[]")
	}
	p.schema.elem = p.elem.schema
	p.encode, p.decode = p.encodeSlice, p.decodeSlice
	return nil
}

func encodeBytes(e *Encoder, p unsafe.Pointer) error {
	v := *(*[]byte)(p)
	if v == nil {
		e.WriteUint(0)
		return nil
	}
	e.WriteUint(uint64(len(v)) + 1)
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
	from, err := d.next(n)
	if err != nil {
		return err
	}
	if err := d.charge(n); err != nil {
		return err
	}
	*(*[]byte)(to) = append(make([]byte, 0, n), from...)
	return nil
}

func (p *plan) encodeSlice(e *Encoder, from unsafe.Pointer) error {
	h := (*sliceHeader)(from)
	if h.data == nil {
		e.WriteUint(0)
		return nil
	}
	e.WriteUint(uint64(h.len) + 1)
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

// decodeSlice decodes a slice to the variable at address to, which has the slice type of p. s is
// the schema of the slice type at the sender. The variable gets nil if the sender's slice was nil.
// The elements are in new memory; that of the slice in the variable is not reused, since it may be
// in use. The error matches ErrCorrupt or ErrLimit, or is that of an element; the variable may then
// be partly written.
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
	if err := d.chargeElements(n, int(p.elem.typ.Size())); err != nil {
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
		return addSegment(err, "[]")
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
			from, err := d.next(n)
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

// encodeAll appends n values of the type of p to the message. from is the address of the first; the
// others follow in memory as in an array. It stops at the first error and returns it, with the
// index of the value in its path.
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
			return addSegment(err, fmt.Sprintf("[%d]", i))
		}
	}
	return nil
}

// decodeAll decodes n values to variables of the type of p. s is the schema of the values' type at
// the sender. to is the address of the first variable; the others follow in memory as in an array.
// It stops at the first error and returns it; unless the values are floats or complex numbers, its
// path has the index of the value.
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
			return addSegment(err, fmt.Sprintf("[%d]", i))
		}
	}
	return nil
}

func (c *compiler) mapType(p *plan) (err error) {
	p.schema.kind = kindMap
	if p.key, err = c.plan(p.typ.Key()); err != nil {
		return addSegment(err, "[key]")
	}
	if p.elem, err = c.plan(p.typ.Elem()); err != nil {
		return addSegment(err, "[]")
	}
	p.schema.key, p.schema.elem = p.key.schema, p.elem.schema
	p.encode, p.decode = p.encodeMap, p.decodeMap
	return nil
}

// encodeMap appends the map in the variable at address from to the message, a nil map as 0 and
// otherwise its entries in random order. The error is that of a key or element, with the segment
// that entrySegment returns for the key in its path; or it matches ErrCycle if the map contains
// itself, or ErrLimit if it is nested too deep.
func (p *plan) encodeMap(e *Encoder, from unsafe.Pointer) error {
	m := reflect.NewAt(p.typ, from).Elem()
	if m.IsNil() {
		e.WriteUint(0)
		return nil
	}
	e.WriteUint(uint64(m.Len()) + 1)
	if m.Len() == 0 {
		return nil
	}
	open, err := e.enter(m.UnsafePointer(), 0, p.typ)
	if err != nil {
		return err
	}
	key, elem := reflect.New(p.key.typ), reflect.New(p.elem.typ)
	for entries := m.MapRange(); entries.Next(); {
		key.Elem().SetIterKey(entries)
		elem.Elem().SetIterValue(entries)
		err := p.key.encode(e, key.UnsafePointer())
		if err == nil {
			err = p.elem.encode(e, elem.UnsafePointer())
		}
		if err != nil {
			return addSegment(err, entrySegment(key.Elem()))
		}
	}
	e.leave(open)
	return nil
}

// entrySegment returns the segment of an error's path for the map entry with that key, in brackets.
// It is the quoted key if that is a string, the key as the verb %v formats it if it is a number or
// a bool, and otherwise the type of the key.
func entrySegment(key reflect.Value) string {
	switch k := key.Kind(); {
	case k == reflect.String:
		return fmt.Sprintf("[%q]", key.String())
	case k < reflect.Array:
		return fmt.Sprintf("[%v]", key)
	default: // formatting the key could run its methods
		return fmt.Sprintf("[%v]", key.Type())
	}
}

// mapEntryOverhead is the memory of an entry of a map in addition to key and element,
// which are counted twice for the spare capacity of the map.
const mapEntryOverhead = 16

// decodeMap decodes a map to the variable at address to, which has the map type of p. s is the
// schema of the map type at the sender. The variable gets a new map, or nil if the sender's was nil
// or there is an error. The error matches ErrCorrupt, also for a key that occurs twice or cannot be
// compared, or ErrLimit; or it is that of a key, with "[key]" in its path, or of an element, with
// the segment that entrySegment returns for its key.
func (p *plan) decodeMap(d *Decoder, s *schema, to unsafe.Pointer) error {
	zero(p.typ, to)
	n, isNil, err := d.length(s.key.width + s.elem.width)
	if err != nil || isNil {
		return err
	}
	if n > 1 && s.key.width == 0 {
		return corruptf("%d entries of a map that has one key", n)
	}
	if err := d.charge(64); err != nil {
		return err
	}
	if err := d.chargeElements(n, mapEntryOverhead+2*int(p.key.typ.Size()+p.elem.typ.Size())); err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	m := reflect.MakeMapWithSize(p.typ, n)
	if n > 0 {
		key, elem := reflect.New(p.key.typ), reflect.New(p.elem.typ)
		for range n {
			key.Elem().SetZero()
			elem.Elem().SetZero()
			if err := p.key.decode(d, s.key, key.UnsafePointer()); err != nil {
				return addSegment(err, "[key]")
			}
			if !key.Elem().Comparable() {
				return addSegment(corruptf("a key that cannot be compared"), "[key]")
			}
			if err := p.elem.decode(d, s.elem, elem.UnsafePointer()); err != nil {
				return addSegment(err, entrySegment(key.Elem()))
			}
			m.SetMapIndex(key.Elem(), elem.Elem())
		}
	}
	if m.Len() != n {
		return corruptf("a key comes twice in a map of %d", n)
	}
	d.leave()
	reflect.NewAt(p.typ, to).Elem().Set(m)
	return nil
}
