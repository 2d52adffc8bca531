package codec

import (
	"reflect"
	"unsafe"
)

// decodedObject is an object that has been decoded, is being decoded or was skipped.
type decodedObject struct {
	typ     reflect.Type   // of the pointer; nil until it is decoded
	pointer unsafe.Pointer // nil while it is being decoded

	// Schema and position of a skipped object, which is decoded after all if a pointer
	// that is not skipped points to it too.
	schema   *schema
	pos, end int
}

// object decodes a pointer to the variable at address to, which has the type of p. s is the schema
// of the pointer type at the sender. The value that a pointer points to, the object, is in the
// message only once. If it follows here, object calls decode, which must decode the object and set
// the variable to a pointer to it. Otherwise the variable gets the pointer that was decoded before;
// if the object was skipped before, decode is called at its position. For a nil pointer the
// variable is set to nil. The error matches ErrCorrupt, ErrLimit or ErrType, or is that
// of decode.
func (d *Decoder) object(p *plan, s *schema, to unsafe.Pointer, decode func(*Decoder, *schema, unsafe.Pointer) error) error {
	*(*unsafe.Pointer)(to) = nil
	r, err := d.uvarint()
	if err != nil || r == 0 {
		return err
	}
	n := (r - 1) / 2
	if r%2 == 0 {
		return d.resolveObject(n, p, to, decode)
	}
	if err := d.addObject(n); err != nil {
		return err
	}
	if d.objects[n].typ != nil {
		end := d.objects[n].end
		if err := d.resolveObject(n, p, to, decode); err != nil {
			return err
		}
		d.pos = end
		return nil
	}
	return d.decodeObject(n, p, s, to, decode)
}

func (d *Decoder) decodeObject(n uint64, p *plan, s *schema, to unsafe.Pointer, decode func(*Decoder, *schema, unsafe.Pointer) error) error {
	if err := d.enter(); err != nil {
		return err
	}
	d.objects[n].typ = p.typ
	if err := decode(d, s, to); err != nil {
		return err
	}
	d.objects[n].pointer = *(*unsafe.Pointer)(to)
	d.leave()
	return nil
}

// addObject appends entries to d.objects, if needed, so that there is one for object n, a value
// that a pointer points to and that comes next in the message. n must be the number after that of
// the last object, with two exceptions: it may be larger after a custom encoding was skipped, which
// may have had objects in it, and smaller for an object inside a skipped one that is decoded after
// all. For any other n the error matches ErrCorrupt. If the entries exceed the memory that the
// message may use, it matches ErrLimit.
func (d *Decoder) addObject(n uint64) error {
	have := uint64(len(d.objects))
	switch {
	case n < have && d.replays > 0 && d.objects[n].pos == d.pos:
		return nil
	case n == have || n > have && d.customSkipped && n < uint64(len(d.data)):
	default:
		return corruptf("object %d where %d comes next", n, have)
	}
	added := int(n-have) + 1
	if err := d.charge(added * int(unsafe.Sizeof(decodedObject{}))); err != nil {
		return err
	}
	for range added {
		d.objects = append(d.objects, decodedObject{})
	}
	return nil
}

// resolveObject sets the pointer variable at address to, which has the type of p, to object n,
// which occurred before in the message. If that object was skipped, resolveObject moves to the
// position where it was skipped, calls decode for it, and then moves back to the current position.
// The error matches ErrCorrupt if the object did not occur or contains itself, and ErrType if the
// object was decoded to another type or was skipped inside a custom encoding. Otherwise it is that
// of match or decodeObject.
func (d *Decoder) resolveObject(n uint64, p *plan, to unsafe.Pointer, decode func(*Decoder, *schema, unsafe.Pointer) error) error {
	have := uint64(len(d.objects))
	if n >= have && !d.customSkipped {
		return corruptf("object %d of %d", n, have)
	}
	var o decodedObject // unknown if the object is in a custom encoding that was skipped
	if n < have {
		o = d.objects[n]
	}
	switch {
	case o.typ == p.typ && o.pointer != nil:
		*(*unsafe.Pointer)(to) = o.pointer
		return nil
	case o.typ == p.typ:
		return corruptf("object %d contains itself", n)
	case o.typ != nil:
		return errorf(ErrType, "the same object is decoded to a %v and a %v", o.typ, p.typ)
	case o.schema == nil:
		return errorf(ErrType, "object %d is in a custom encoding that was skipped", n)
	}
	if err := d.match(o.schema, p.schema, p); err != nil {
		return err
	}
	here := d.cursor
	d.cursor = cursor{data: d.values, pos: o.pos}
	d.replays++
	err := d.decodeObject(n, p, o.schema, to, decode)
	d.replays--
	d.cursor = here
	return err
}

// object identifies the value that a pointer points to. The type is part of the identity because a
// struct and its first field have the same address.
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
	decode := func(d *Decoder, s *schema, to unsafe.Pointer) error {
		if err := d.charge(int(p.elem.typ.Size()) + 16); err != nil {
			return err
		}
		v := reflect.New(p.elem.typ).UnsafePointer()
		if err := p.elem.decode(d, s.elem, v); err != nil {
			return err
		}
		*(*unsafe.Pointer)(to) = v
		return nil
	}
	p.decode = func(d *Decoder, s *schema, to unsafe.Pointer) error { return d.object(p, s, to, decode) }
	return nil
}

// object appends a pointer of type t with that address to the message: 0 for nil, 2n+2 if the value
// it points to is object n of the message already, and otherwise 2n+1 with the next n, followed by
// the value, which encode appends. The Encoder keeps the address until Reset. The error matches
// ErrCycle if the value is still being encoded, or ErrLimit if it is nested too deep; or it is that
// of encode.
func (e *Encoder) object(t reflect.Type, address unsafe.Pointer, encode func(*Encoder, unsafe.Pointer) error) error {
	if address == nil {
		e.WriteUint(0)
		return nil
	}
	o := object{address, t}
	if n, ok := e.objects.find(o); ok {
		if e.unfinished[n] {
			return errorf(ErrCycle, "through a %v", t)
		}
		e.WriteUint(2*uint64(n) + 2)
		return nil
	}
	n := e.objects.add(o)
	e.unfinished = append(e.unfinished, true)
	e.WriteUint(2*uint64(n) + 1)
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
