package codec

import (
	"fmt"
	"reflect"
	"unsafe"
)

func (c *compiler) mapping(p *plan) (err error) {
	p.schema.kind = kindMap
	if p.key, err = c.plan(p.typ.Key()); err != nil {
		return at(err, "[key]")
	}
	if p.elem, err = c.plan(p.typ.Elem()); err != nil {
		return at(err, "[]")
	}
	p.schema.key, p.schema.elem = p.key.schema, p.elem.schema
	p.encode, p.decode = p.encodeMap, p.decodeMap
	return nil
}

// encodeMap writes the entries in any order.
func (p *plan) encodeMap(e *Encoder, from unsafe.Pointer) error {
	m := reflect.NewAt(p.typ, from).Elem()
	if m.IsNil() {
		e.Uint(0)
		return nil
	}
	e.Uint(uint64(m.Len()) + 1)
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
		if err := p.encodeEntry(e, key, elem); err != nil {
			return at(err, entrySegment(key.Elem()))
		}
	}
	e.leave(open)
	return nil
}

func (p *plan) encodeEntry(e *Encoder, key, elem reflect.Value) error {
	if err := p.key.encode(e, key.UnsafePointer()); err != nil {
		return err
	}
	return p.elem.encode(e, elem.UnsafePointer())
}

// entrySegment is the part of a path that leads to an entry of a map.
func entrySegment(key reflect.Value) string {
	switch k := key.Kind(); {
	case k == reflect.String:
		return fmt.Sprintf("[%q]", key.String())
	case k < reflect.Array:
		return fmt.Sprintf("[%v]", key)
	default: // whatever it is, its methods are not to be run for this
		return fmt.Sprintf("[%v]", key.Type())
	}
}

// room is what an entry of a map takes beyond its key and element, which the
// map doubles to have room to grow.
const room = 16

func (p *plan) decodeMap(d *Decoder, s *schema, to unsafe.Pointer) error {
	zero(p.typ, to)
	n, isNil, err := d.length(s.key.width + s.elem.width)
	if err != nil || isNil {
		return err
	}
	if n > 1 && s.key.width == 0 {
		return corrupt("%d entries of a map that has one key", n)
	}
	if err := d.spend(64); err != nil {
		return err
	}
	if err := d.spendElements(n, room+2*int(p.key.typ.Size()+p.elem.typ.Size())); err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	m := reflect.MakeMapWithSize(p.typ, n)
	if n > 0 {
		if err := p.decodeEntries(d, s, m, n); err != nil {
			return err
		}
	}
	d.leave()
	reflect.NewAt(p.typ, to).Elem().Set(m)
	return nil
}

// decodeEntries reads each key and element to memory that it uses again for the
// next.
func (p *plan) decodeEntries(d *Decoder, s *schema, m reflect.Value, n int) error {
	key, elem := reflect.New(p.key.typ), reflect.New(p.elem.typ)
	for range n {
		key.Elem().SetZero()
		elem.Elem().SetZero()
		if err := p.key.decode(d, s.key, key.UnsafePointer()); err != nil {
			return at(err, "[key]")
		}
		if !key.Elem().Comparable() {
			return at(corrupt("a key that cannot be compared"), "[key]")
		}
		if err := p.elem.decode(d, s.elem, elem.UnsafePointer()); err != nil {
			return at(err, entrySegment(key.Elem()))
		}
		m.SetMapIndex(key.Elem(), elem.Elem())
	}
	if m.Len() != n {
		return corrupt("a key comes twice in a map of %d", n)
	}
	return nil
}
