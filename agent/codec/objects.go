package codec

import (
	"reflect"
	"unsafe"
)

// arrived is an object of a message that is being decoded.
type arrived struct {
	typ     reflect.Type   // of the pointer; nil as long as it was not decoded
	pointer unsafe.Pointer // nil while it is being decoded

	// Of one that was skipped: what it is and where, to decode it should a
	// pointer that is known here point to it too.
	schema   *schema
	pos, end int
}

// object reads a pointer to memory of type p.typ at to. An object that comes
// for the first time is read by decode.
func (d *Decoder) object(p *plan, s *schema, to unsafe.Pointer, decode func(*Decoder, *schema, unsafe.Pointer) error) error {
	*(*unsafe.Pointer)(to) = nil
	r, err := d.uvarint()
	if err != nil || r == 0 {
		return err
	}
	n := (r - 1) / 2
	if r%2 == 0 {
		return d.again(n, p, to, decode)
	}
	if err := d.first(n); err != nil {
		return err
	}
	if d.objects[n].typ != nil {
		end := d.objects[n].end
		if err := d.again(n, p, to, decode); err != nil {
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

// first makes room for an object that comes now. Numbers go up by one, except
// where objects lay in bytes that only the application could have read, and
// where one that was skipped is read after all, which may hold others of which
// that is true.
func (d *Decoder) first(n uint64) error {
	have := uint64(len(d.objects))
	switch {
	case n < have && d.replays > 0 && d.objects[n].pos == d.pos:
		return nil
	case n == have || n > have && d.lost && n < uint64(len(d.data)):
	default:
		return corrupt("object %d where %d comes next", n, have)
	}
	added := int(n-have) + 1
	if err := d.spend(added * int(unsafe.Sizeof(arrived{}))); err != nil {
		return err
	}
	for range added {
		d.objects = append(d.objects, arrived{})
	}
	return nil
}

// again finds an object that came before.
func (d *Decoder) again(n uint64, p *plan, to unsafe.Pointer, decode func(*Decoder, *schema, unsafe.Pointer) error) error {
	if have := len(d.objects); n >= uint64(have) {
		if d.lost {
			return hidden(n)
		}
		return corrupt("object %d of %d", n, have)
	}
	o := &d.objects[n]
	switch {
	case o.typ == p.typ && o.pointer != nil:
		*(*unsafe.Pointer)(to) = o.pointer
		return nil
	case o.typ == p.typ:
		return corrupt("object %d contains itself", n)
	case o.typ != nil:
		return fault(ErrType, "the same object goes to a %v and a %v", o.typ, p.typ)
	case o.schema == nil:
		return hidden(n)
	default:
		return d.replay(n, p, to, decode)
	}
}

func hidden(n uint64) error {
	return fault(ErrType, "object %d lies in a value that was skipped and only the application can read", n)
}

// replay decodes an object where it was skipped.
func (d *Decoder) replay(n uint64, p *plan, to unsafe.Pointer, decode func(*Decoder, *schema, unsafe.Pointer) error) error {
	o := d.objects[n]
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
