package codec

import (
	"reflect"
	"unsafe"
)

// tag is the key of the struct tag that renames a field or, as "-", leaves it
// out.
const tag = "tensorpipe"

func (c *compiler) structure(p *plan) error {
	p.schema.kind, p.schema.name = kindStruct, p.typ.String()
	names := map[string]bool{}
	for i := range p.typ.NumField() {
		f := p.typ.Field(i)
		name := fieldName(f)
		if name == "" {
			continue
		}
		if !f.IsExported() {
			return at(fault(ErrUnsupported, "the field is not exported"), "."+f.Name)
		}
		if names[name] {
			return at(fault(ErrUnsupported, "two fields with the name %q", name), "."+f.Name)
		}
		names[name] = true
		elem, err := c.plan(f.Type)
		if err != nil {
			return at(err, "."+f.Name)
		}
		p.fields = append(p.fields, field{name: name, offset: f.Offset, plan: elem})
		p.schema.fields = append(p.schema.fields, schemaField{name: name, typ: elem.schema})
	}
	if n := len(p.fields); n > maxFields {
		return fault(ErrUnsupported, "%v has %d fields that travel, at most %d do", p.typ, n, maxFields)
	}
	p.encode, p.decode = p.encodeStruct, p.decodeStruct
	return nil
}

// fieldName is the name of a field on the wire, "" if it is left out. Fields
// named _ hold nothing.
func fieldName(f reflect.StructField) string {
	switch name := f.Tag.Get(tag); {
	case name == "-" || f.Name == "_":
		return ""
	case name != "":
		return name
	default:
		return f.Name
	}
}

func (p *plan) encodeStruct(e *Encoder, from unsafe.Pointer) error {
	for i := range p.fields {
		f := &p.fields[i]
		if err := f.plan.encode(e, unsafe.Add(from, f.offset)); err != nil {
			return at(err, "."+f.name)
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
			return at(err, "."+f.name)
		}
	}
	return nil
}

// decodeMatched reads a struct that has other fields, or others in another
// order: what is not known here is skipped, what is not there becomes zero.
func (p *plan) decodeMatched(d *Decoder, s *schema, to unsafe.Pointer) error {
	m := d.matches[pair{s, p}]
	for _, part := range m.steps {
		var err error
		if part.ours == nil {
			err = d.skip(part.theirs.typ)
		} else {
			err = part.ours.plan.decode(d, part.theirs.typ, unsafe.Add(to, part.ours.offset))
		}
		if err != nil {
			return at(err, "."+part.theirs.name)
		}
	}
	for _, f := range m.missing {
		zero(f.plan.typ, unsafe.Add(to, f.offset))
	}
	return nil
}

// zero overwrites a value.
func zero(t reflect.Type, at unsafe.Pointer) { reflect.NewAt(t, at).Elem().SetZero() }
