package codec

import "unsafe"

const (
	// maxSchema bounds in bytes how long the description of one type may be.
	maxSchema = 1 << 16

	// maxFields bounds the fields of a struct that travel.
	maxFields = 1024

	// maxHeight bounds how deep types may be nested in each other.
	maxHeight = 100
)

// schemaReader reads what schemaWriter wrote.
type schemaReader struct {
	cursor
	structs []*schema
	spend   func(bytes int) error // asked before memory is taken
}

// readSchema reads the whole of text.
func readSchema(text []byte, spend func(int) error) (*schema, error) {
	if len(text) > maxSchema {
		return nil, fault(ErrLimit, "description of a type of %d bytes, at most %d", len(text), maxSchema)
	}
	r := schemaReader{cursor: cursor{data: text}, spend: spend}
	s, err := r.read(0)
	if err == nil && r.left() > 0 {
		err = corrupt("%d bytes behind the description of a type", r.left())
	}
	return s, err
}

func (r *schemaReader) read(depth int) (*schema, error) {
	if depth > maxHeight {
		return nil, fault(ErrLimit, "types nested more than %d deep", maxHeight)
	}
	b, err := r.byte()
	if err != nil {
		return nil, err
	}
	k := kind(b)
	if k == kindBack {
		return r.back()
	}
	if k == 0 || k > kindBinary {
		return nil, corrupt("kind %d of a type is not known", k)
	}
	if err := r.spend(int(unsafe.Sizeof(schema{}))); err != nil {
		return nil, err
	}
	s := &schema{kind: k}
	if err := r.parts(s, depth+1); err != nil {
		return nil, err
	}
	s.measure()
	if s.height > maxHeight {
		return nil, fault(ErrLimit, "types nested more than %d deep", maxHeight)
	}
	return s, nil
}

// back finds a struct that came before. One that is still being read has no
// height yet, and whoever needs it refuses it.
func (r *schemaReader) back() (*schema, error) {
	place, err := r.size()
	if err != nil {
		return nil, err
	}
	if place >= len(r.structs) {
		return nil, corrupt("type %d of %d", place, len(r.structs))
	}
	return r.structs[place], nil
}

// parts reads what follows a kind.
func (r *schemaReader) parts(s *schema, depth int) (err error) {
	switch s.kind {
	case kindSlice, kindPointer:
		s.elem, err = r.read(depth)
	case kindArray:
		if s.n, err = r.size(); err == nil {
			s.elem, err = r.byValue(depth)
		}
	case kindMap:
		if s.key, err = r.read(depth); err == nil {
			s.elem, err = r.read(depth)
		}
	case kindOwn:
		s.name, err = r.name()
	case kindStruct:
		err = r.structure(s, depth)
	}
	return err
}

// byValue reads a type that lies within another one.
func (r *schemaReader) byValue(depth int) (*schema, error) {
	s, err := r.read(depth)
	if err == nil && s.kind == kindStruct && s.height == 0 {
		err = corrupt("struct %s lies within itself", s.name)
	}
	return s, err
}

func (r *schemaReader) name() (string, error) {
	p, err := r.text()
	if err == nil {
		err = r.spend(len(p))
	}
	return string(p), err
}

func (r *schemaReader) structure(s *schema, depth int) (err error) {
	r.structs = append(r.structs, s)
	if s.name, err = r.name(); err != nil {
		return err
	}
	n, err := r.count(2)
	if err != nil {
		return err
	}
	if n > maxFields {
		return fault(ErrLimit, "struct of %d fields, at most %d", n, maxFields)
	}
	// The pointer is for the list of those that take bytes.
	if err := r.spend(n * int(unsafe.Sizeof(schemaField{})+unsafe.Sizeof(s))); err != nil {
		return err
	}
	s.fields = make([]schemaField, n)
	for i := range s.fields {
		f := &s.fields[i]
		if f.name, err = r.name(); err != nil {
			return err
		}
		if f.typ, err = r.byValue(depth); err != nil {
			return err
		}
	}
	return nil
}
