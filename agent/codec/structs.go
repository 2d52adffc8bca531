package codec

import (
	"cmp"
	"reflect"
	"slices"
	"unsafe"
)

// tag is the key of the struct tag that renames a field or, with "-", omits it. At a field named _
// it is the name of the struct.
const tag = "tensorpipe"

func (c *compiler) structType(p *plan) error {
	p.schema.kind, p.schema.name = kindStruct, p.typ.String()
	names := map[string]bool{}
	for i := range p.typ.NumField() {
		f := p.typ.Field(i)
		name := cmp.Or(f.Tag.Get(tag), f.Name)
		switch {
		case name == "-":
			continue
		case f.Name == "_": // it has no value
			if name != "_" {
				p.schema.name = name
			}
			continue
		}
		if !f.IsExported() {
			return addSegment(errorf(ErrUnsupported, "the field is not exported"), "."+f.Name)
		}
		if names[name] {
			return addSegment(errorf(ErrUnsupported, "two fields with the name %q", name), "."+f.Name)
		}
		names[name] = true
		elem, err := c.plan(f.Type)
		if err != nil {
			return addSegment(err, "."+f.Name)
		}
		p.fields = append(p.fields, field{name: name, offset: f.Offset, plan: elem})
		p.schema.fields = append(p.schema.fields, schemaField{name: name, typ: elem.schema})
	}
	if n := len(p.fields); n > maxFields {
		return errorf(ErrUnsupported, "%v has %d encoded fields, at most %d are allowed", p.typ, n, maxFields)
	}
	p.encode, p.decode = p.encodeStruct, p.decodeStruct
	return nil
}

func (p *plan) encodeStruct(e *Encoder, from unsafe.Pointer) error {
	for i := range p.fields {
		f := &p.fields[i]
		if err := f.plan.encode(e, unsafe.Add(from, f.offset)); err != nil {
			return addSegment(err, "."+f.name)
		}
	}
	return nil
}

func (p *plan) decodeStruct(d *Decoder, s *schema, to unsafe.Pointer) error {
	if s != p.schema {
		return p.decodeMatched(d, s, to)
	}
	for i := range p.fields {
		f := &p.fields[i]
		if err := f.plan.decode(d, f.plan.schema, unsafe.Add(to, f.offset)); err != nil {
			return addSegment(err, "."+f.name)
		}
	}
	return nil
}

// decodeMatched decodes a struct to the variable at address to, which has the type of p. s is the
// schema of the struct at the sender; it differs from that of p, and d.match must have matched the
// two. Fields that p does not have are skipped, and fields that s does not have become zero. The
// error is that of a field, with the field in its path.
func (p *plan) decodeMatched(d *Decoder, s *schema, to unsafe.Pointer) error {
	m := d.matches[pair{s, p}]
	for _, part := range m.steps {
		var err error
		if part.local == nil {
			err = d.skip(part.remote.typ)
		} else {
			err = part.local.plan.decode(d, part.remote.typ, unsafe.Add(to, part.local.offset))
		}
		if err != nil {
			return addSegment(err, "."+part.remote.name)
		}
	}
	for _, f := range m.missing {
		zero(f.plan.typ, unsafe.Add(to, f.offset))
	}
	return nil
}

// zero sets the variable of type t at that address to the zero value of t.
func zero(t reflect.Type, at unsafe.Pointer) { reflect.NewAt(t, at).Elem().SetZero() }

// pair is a struct type of the sender and the local struct type to which it is decoded.
type pair struct {
	remote *schema
	local  *plan
}

// match records how a struct of the sender is decoded to a local struct type.
type match struct {
	steps   []step   // in the sender's order, without unknown fields that take no bytes
	missing []*field // local fields that the sender does not have; they become zero
}

// step is a field of the sender and the local field to which it is decoded; a nil local field means
// that the sender's field is skipped.
type step struct {
	remote *schemaField
	local  *field
}

// match returns nil if values with the schema remote at the sender can be decoded by p, and records
// in d.matches how the structs in them are decoded. local is the schema of p, or that of an element
// of p that has no plan of its own. If the types differ, the error is a *TypeError, or an *Error
// that wraps one and has the path to the difference. It may also match ErrCorrupt or ErrLimit.
func (d *Decoder) match(remote, local *schema, p *plan) error {
	switch {
	case remote == local:
		return nil
	case remote.kind != local.kind,
		remote.kind == kindCustom && remote.name != local.name,
		remote.kind == kindArray && remote.n != local.n:
		return &TypeError{Wire: remote.String(), Go: p.typ.String()}
	}
	switch remote.kind {
	case kindMap:
		if err := d.match(remote.key, local.key, p.key); err != nil {
			return addSegment(err, "[key]")
		}
		return addSegment(d.match(remote.elem, local.elem, p.elem), "[]")
	case kindSlice, kindArray:
		return addSegment(d.match(remote.elem, local.elem, elemPlan(p.elem, p)), "[]")
	case kindPointer:
		return d.match(remote.elem, local.elem, elemPlan(p.elem, p))
	case kindStruct:
		return d.matchStruct(remote, p)
	}
	return nil
}

// elemPlan returns part, the plan of the elements of a type. If part is nil, it returns whole, the
// plan of the type itself: the elements of a byte array, and the values of a pointer type with a
// hook, have no plan.
func elemPlan(part, whole *plan) *plan {
	if part != nil {
		return part
	}
	return whole
}

// matchStruct records in d.matches how structs with the schema remote at the sender are decoded by
// p: which of the sender's fields has the name of which local field, and which fields only one end
// has. It also matches the types of the fields, recursively. A repeated call does nothing. The
// error is that of match; it matches ErrCorrupt also if the sender has two fields of one name.
func (d *Decoder) matchStruct(remote *schema, p *plan) error {
	k := pair{remote, p}
	if d.matches[k] != nil {
		return nil
	}
	if err := d.charge(int(unsafe.Sizeof(match{})) + 32*(len(remote.fields)+len(p.fields))); err != nil {
		return err
	}
	if d.matches == nil {
		d.matches = map[pair]*match{}
	}
	m := &match{steps: make([]step, 0, len(remote.fields))}
	d.matches[k] = m // before its fields, which may contain the same types
	found := make([]bool, len(p.fields))
	for i := range remote.fields {
		f := &remote.fields[i]
		n := slices.IndexFunc(p.fields, func(local field) bool { return local.name == f.name })
		if n < 0 {
			if f.typ.width > 0 {
				m.steps = append(m.steps, step{remote: f})
			}
			continue
		}
		if found[n] {
			return addSegment(corruptf("two fields with the same name"), "."+f.name)
		}
		local := &p.fields[n]
		found[n] = true
		m.steps = append(m.steps, step{f, local})
		if err := d.match(f.typ, local.plan.schema, local.plan); err != nil {
			return addSegment(err, "."+f.name)
		}
	}
	for i := range p.fields {
		if !found[i] {
			m.missing = append(m.missing, &p.fields[i])
		}
	}
	return nil
}
