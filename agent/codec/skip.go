package codec

import "encoding/binary"

// skip moves past a value whose type has the schema s at the sender. It records in d.objects the
// positions of values that pointers in it point to, so that they can still be decoded if a later
// pointer refers to one. The error matches ErrCorrupt or ErrLimit.
func (d *Decoder) skip(s *schema) error {
	if s.width == 0 {
		return nil
	}
	s = s.core
	if s.width > d.remaining() {
		return corruptf("byte %d: %s takes at least %d bytes, but %d remain", d.pos, s, s.width, d.remaining())
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	switch s.kind {
	case kindInt, kindUint, kindTensor:
		_, err := d.uvarint()
		return err
	case kindString, kindBinary:
		_, err := d.text()
		return err
	case kindBytes:
		n, _, err := d.length(1)
		if err == nil {
			_, err = d.next(n)
		}
		return err
	case kindTime:
		return d.skipTime()
	case kindCustom:
		n, err := d.customLength()
		if err == nil {
			_, err = d.next(n)
			d.customSkipped = true // objects inside it cannot be found any more
		}
		return err
	case kindInterface:
		n, err := d.uvarint()
		if err != nil || n == 0 {
			return err
		}
		return d.skipTyped(n - 1)
	case kindError:
		return d.skipError()
	case kindSlice, kindMap, kindArray, kindStruct:
		return d.skipParts(s)
	case kindPointer, kindSparse:
		return d.skipObject(s)
	default: // kinds of fixed size
		_, err := d.next(s.width)
		return err
	}
}

func (d *Decoder) skipTime() error {
	if _, err := d.varint(); err != nil {
		return err
	}
	if _, err := d.uvarint(); err != nil {
		return err
	}
	form, err := d.byte()
	if err == nil && form != zoneUTC {
		_, err = d.varint()
	}
	return err
}

func (d *Decoder) skipParts(s *schema) error {
	switch s.kind {
	case kindStruct:
		for _, part := range s.nonEmpty {
			if err := d.skip(part); err != nil {
				return err
			}
		}
		return nil
	case kindArray:
		return d.skipAll(s.n, s.elem, nil)
	case kindMap:
		n, _, err := d.length(s.key.width + s.elem.width)
		if err != nil {
			return err
		}
		return d.skipAll(n, s.elem, s.key)
	default:
		n, _, err := d.length(s.elem.width)
		if err != nil {
			return err
		}
		return d.skipAll(n, s.elem, nil)
	}
}

// skipAll moves past n elements with the schema elem. If key is not nil, a key with that schema is
// before each of them, as in a map. skipAll returns at once if neither takes any bytes. The errors
// are those of skip.
func (d *Decoder) skipAll(n int, elem, key *schema) error {
	if elem.width == 0 && (key == nil || key.width == 0) {
		return nil
	}
	for range n {
		if key != nil {
			if err := d.skip(key); err != nil {
				return err
			}
		}
		if err := d.skip(elem); err != nil {
			return err
		}
	}
	return nil
}

// customLength reads the number of bytes of the custom encoding that comes next, and moves past the
// number, not the bytes. If fewer bytes remain, the error matches ErrCorrupt.
func (d *Decoder) customLength() (int, error) {
	p, err := d.next(customPrefix)
	if err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint32(p)
	if uint64(n) > uint64(d.remaining()) {
		return 0, corruptf("byte %d: %d bytes, but %d remain", d.pos, n, d.remaining())
	}
	return int(n), nil
}

// skipTyped moves past a value whose type is row n of the message's table of types. The error
// matches ErrCorrupt or ErrLimit.
func (d *Decoder) skipTyped(n uint64) error {
	entry, err := d.typeEntry(n)
	if err != nil {
		return err
	}
	s, err := d.schemaOf(entry)
	if err != nil {
		return err
	}
	return d.skip(s)
}

// skipObject moves past a pointer whose type has the schema s at the sender. If the value that the
// pointer points to follows, skipObject moves past the value too, and records its schema and
// position in d.objects, so that the value can still be decoded for a later pointer. The error
// matches ErrCorrupt or ErrLimit.
func (d *Decoder) skipObject(s *schema) error {
	r, err := d.uvarint()
	if err != nil || r == 0 {
		return err
	}
	n := (r - 1) / 2
	if r%2 == 0 {
		if n >= uint64(len(d.objects)) && !d.customSkipped {
			return corruptf("object %d of %d", n, len(d.objects))
		}
		return nil
	}
	if err := d.addObject(n); err != nil {
		return err
	}
	if end := d.objects[n].end; end > 0 {
		d.pos = end
		return nil
	}
	d.objects[n].schema, d.objects[n].pos = s, d.pos
	if s.kind == kindPointer {
		err = d.skip(s.elem)
		d.objects[n].end = d.pos
		return err
	}
	for range 2 { // the views of a sparse tensor
		if _, err := d.uvarint(); err != nil {
			return err
		}
	}
	rank, err := d.count(1)
	for ; err == nil && rank > 0; rank-- {
		_, err = d.uvarint()
	}
	d.objects[n].end = d.pos
	return err
}
