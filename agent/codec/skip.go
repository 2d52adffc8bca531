package codec

import "encoding/binary"

// skip reads over a value that has no place here.
func (d *Decoder) skip(s *schema) error {
	if s.width == 0 {
		return nil
	}
	s = s.core
	if s.width > d.left() {
		return corrupt("byte %d: %s takes at least %d bytes of %d that are left", d.pos, s, s.width, d.left())
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
		return d.skipBytes()
	case kindTime:
		return d.skipTime()
	case kindOwn:
		return d.skipOwn()
	case kindInterface:
		return d.skipInterface()
	case kindError:
		return d.skipError()
	case kindSlice, kindMap, kindArray, kindStruct:
		return d.skipParts(s)
	case kindPointer, kindSparse:
		return d.skipObject(s)
	default: // the width is fixed
		_, err := d.take(s.width)
		return err
	}
}

func (d *Decoder) skipBytes() error {
	n, _, err := d.length(1)
	if err == nil {
		_, err = d.take(n)
	}
	return err
}

func (d *Decoder) skipParts(s *schema) error {
	switch s.kind {
	case kindStruct:
		for _, part := range s.filled {
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

// skipAll reads over n values, with a key before each unless it is nil. Values
// that take no bytes take no time.
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

// skipOwn reads over bytes in which objects may have been that nobody can find
// any more.
func (d *Decoder) skipOwn() error {
	n, err := d.ownLength()
	if err == nil {
		_, err = d.take(n)
		d.lost = true
	}
	return err
}

// ownLength is the length of an encoding of the application's own.
func (d *Decoder) ownLength() (int, error) {
	p, err := d.take(ownFront)
	if err != nil {
		return 0, err
	}
	n := binary.LittleEndian.Uint32(p)
	if uint64(n) > uint64(d.left()) {
		return 0, corrupt("byte %d: %d bytes of %d that are left", d.pos, n, d.left())
	}
	return int(n), nil
}

func (d *Decoder) skipInterface() error {
	n, err := d.uvarint()
	if err != nil || n == 0 {
		return err
	}
	return d.skipTyped(n - 1)
}

// skipTyped reads over a value of a type of the table.
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

// skipObject reads over a pointer and remembers where what it points to is.
func (d *Decoder) skipObject(s *schema) error {
	r, err := d.uvarint()
	if err != nil || r == 0 {
		return err
	}
	n := (r - 1) / 2
	if r%2 == 0 {
		if n >= uint64(len(d.objects)) && !d.lost {
			return corrupt("object %d of %d", n, len(d.objects))
		}
		return nil
	}
	if err := d.first(n); err != nil {
		return err
	}
	if end := d.objects[n].end; end > 0 {
		d.pos = end
		return nil
	}
	d.objects[n].schema, d.objects[n].pos = s, d.pos
	if s.kind == kindSparse {
		err = d.skipSparse()
	} else {
		err = d.skip(s.elem)
	}
	d.objects[n].end = d.pos
	return err
}
