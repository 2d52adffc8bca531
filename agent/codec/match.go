package codec

import (
	"slices"
	"unsafe"
)

// pair is a struct of the sender and the one here that it is decoded to.
type pair struct {
	theirs *schema
	ours   *plan
}

// match says which field here each of theirs goes to.
type match struct {
	fields  []*field // for each of theirs; nil: it is skipped
	missing []*field // of ours, which become zero
}

// match makes sure that values of their schema can be decoded to our type, and
// prepares that. Schema is that of p, or a part of it that has no plan.
func (d *Decoder) match(theirs, ours *schema, p *plan) error {
	switch {
	case theirs == ours:
		return nil
	case theirs.kind != ours.kind,
		theirs.kind == kindOwn && theirs.name != ours.name,
		theirs.kind == kindArray && theirs.n != ours.n:
		return &TypeError{Wire: theirs.String(), Go: p.typ.String()}
	}
	switch theirs.kind {
	case kindMap:
		if err := d.match(theirs.key, ours.key, p.key); err != nil {
			return at(err, "[key]")
		}
		return inside(d.match(theirs.elem, ours.elem, p.elem), "[]")
	case kindSlice, kindArray:
		return inside(d.match(theirs.elem, ours.elem, planOf(p.elem, p)), "[]")
	case kindPointer:
		return d.match(theirs.elem, ours.elem, planOf(p.elem, p))
	case kindStruct:
		return d.matchStruct(theirs, p)
	}
	return nil
}

// planOf is the plan of a part, or of the whole where the part has none: the
// bytes of an array, and what a hook for a pointer makes.
func planOf(part, whole *plan) *plan {
	if part != nil {
		return part
	}
	return whole
}

// inside adds a segment to the path of an error, if it is one.
func inside(err error, segment string) error {
	if err != nil {
		return at(err, segment)
	}
	return nil
}

func (d *Decoder) matchStruct(theirs *schema, p *plan) error {
	k := pair{theirs, p}
	if d.matches[k] != nil {
		return nil
	}
	if err := d.spend(int(unsafe.Sizeof(match{})) + 16*(len(theirs.fields)+len(p.fields))); err != nil {
		return err
	}
	if d.matches == nil {
		d.matches = map[pair]*match{}
	}
	m := &match{fields: make([]*field, len(theirs.fields))}
	d.matches[k] = m // before its fields, which may be of the same types
	found := make([]bool, len(p.fields))
	for i, f := range theirs.fields {
		n := slices.IndexFunc(p.fields, func(ours field) bool { return ours.name == f.name })
		if n < 0 {
			continue
		}
		if found[n] {
			return at(corrupt("two fields with the same name"), "."+f.name)
		}
		found[n], m.fields[i] = true, &p.fields[n]
		if err := d.match(f.typ, p.fields[n].plan.schema, p.fields[n].plan); err != nil {
			return at(err, "."+f.name)
		}
	}
	for i := range p.fields {
		if !found[i] {
			m.missing = append(m.missing, &p.fields[i])
		}
	}
	return nil
}
