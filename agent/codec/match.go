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
	steps   []step   // in their order, but for those that are unknown here and take no bytes
	missing []*field // of ours, which become zero
}

// step is a field of theirs, and the one here that it goes to; nil: it is skipped.
type step struct {
	theirs *schemaField
	ours   *field
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
	if err := d.spend(int(unsafe.Sizeof(match{})) + 32*(len(theirs.fields)+len(p.fields))); err != nil {
		return err
	}
	if d.matches == nil {
		d.matches = map[pair]*match{}
	}
	m := &match{steps: make([]step, 0, len(theirs.fields))}
	d.matches[k] = m // before its fields, which may be of the same types
	found := make([]bool, len(p.fields))
	for i := range theirs.fields {
		if err := d.matchField(m, &theirs.fields[i], p, found); err != nil {
			return at(err, "."+theirs.fields[i].name)
		}
	}
	for i := range p.fields {
		if !found[i] {
			m.missing = append(m.missing, &p.fields[i])
		}
	}
	return nil
}

// matchField adds the step for a field of theirs. Found says which of ours have one.
func (d *Decoder) matchField(m *match, theirs *schemaField, p *plan, found []bool) error {
	n := slices.IndexFunc(p.fields, func(ours field) bool { return ours.name == theirs.name })
	switch {
	case n < 0 && theirs.typ.width == 0:
		return nil
	case n < 0:
		m.steps = append(m.steps, step{theirs: theirs})
		return nil
	case found[n]:
		return corrupt("two fields with the same name")
	}
	ours := &p.fields[n]
	found[n] = true
	m.steps = append(m.steps, step{theirs, ours})
	return d.match(theirs.typ, ours.plan.schema, ours.plan)
}
