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

// object decodes a pointer of type p.typ, of the sender's schema s, to the variable at to. If the
// object occurs for the first time it calls decode, which must set that variable; otherwise the
// variable gets the pointer to the object decoded before. The error matches ErrCorrupt, ErrLimit or
// ErrType, or is that of decode.
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

// addObject adds object n, whose value comes next in the message, to d.objects. Numbers increase by
// one, with two exceptions: objects in skipped custom encodings leave a gap, and when a skipped object
// is decoded after all, the objects inside it are in d.objects already. For any other number the error
// matches ErrCorrupt; it may also match ErrLimit.
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

// resolveObject sets the pointer at to, of the type of p, to object n, which occurred before in the
// message. If that object was skipped, resolveObject decodes it with decode, at the position where it
// was skipped. The error is that of decoding, or matches ErrCorrupt for a number that did not occur or
// an object that contains itself. It matches ErrType if the object was decoded to another type or
// skipped with a custom encoding.
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

// object encodes a pointer of type t with that address: nil as 0; the number of the value, if it has
// been encoded before; or a new number, and the value by encode. The error matches ErrCycle if the value
// is still being encoded, ErrLimit, or is that of encode.
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
