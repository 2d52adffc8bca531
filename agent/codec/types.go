package codec

import (
	"encoding/binary"
	"reflect"
	"unsafe"
)

// typeKey is a type in a message: of a value that was given to Encode, or of one
// in an interface, which has a name.
type typeKey struct {
	typ   reflect.Type
	named bool
}

// typeUse is a row of the table of types to be written.
type typeUse struct {
	plan    *plan
	name    string
	pointer bool // the value is a pointer to the type of that name
}

// use finds the number of a type in the table, in which it is put if need be.
func (e *Encoder) use(k typeKey, p *plan, name string, pointer bool) int {
	n, ok := e.types.find(k)
	if !ok {
		n = e.types.add(k)
		e.uses = append(e.uses, typeUse{p, name, pointer})
	}
	return n
}

func (e *Encoder) appendTypes() {
	e.Uint(uint64(len(e.uses)))
	for _, u := range e.uses {
		text, hash := u.plan.written()
		e.String(u.name)
		e.Bool(u.pointer)
		e.buf = binary.LittleEndian.AppendUint64(e.buf, hash)
		e.Uint(uint64(len(text)))
		e.buf = append(e.buf, text...)
	}
}

// typeEntry is a row of the table of types that came.
type typeEntry struct {
	name    []byte
	pointer bool
	hash    uint64
	text    []byte

	schema *schema // what text says, once it was needed

	// What the type was resolved to last.
	typ      reflect.Type
	plan     *plan
	resolved *schema
}

// minType is the fewest bytes of a row.
const minType = 11

func (d *Decoder) readTypes(c *cursor) error {
	n, err := c.count(minType)
	if err != nil {
		return err
	}
	if err := d.spend(n * int(unsafe.Sizeof(typeEntry{}))); err != nil {
		return err
	}
	for range n {
		var entry typeEntry
		if entry, err = readType(c); err != nil {
			return err
		}
		d.types = append(d.types, entry)
	}
	return nil
}

func readType(c *cursor) (entry typeEntry, err error) {
	if entry.name, err = c.text(); err != nil {
		return entry, err
	}
	pointer, err := c.byte()
	if err != nil {
		return entry, err
	}
	if pointer > 1 {
		return entry, corrupt("type with the flag %d", pointer)
	}
	entry.pointer = pointer == 1
	hash, err := c.take(8)
	if err != nil {
		return entry, err
	}
	entry.hash = binary.LittleEndian.Uint64(hash)
	entry.text, err = c.text()
	return entry, err
}

func (d *Decoder) typeEntry(n uint64) (*typeEntry, error) {
	if n >= uint64(len(d.types)) {
		return nil, corrupt("type %d of %d", n, len(d.types))
	}
	return &d.types[n], nil
}

// resolve finds how a type that came is decoded to a Go type. If both are the
// same the schema is that of the plan; a sender that lies about the hash spoils
// nothing but its own message.
func (d *Decoder) resolve(entry *typeEntry, t reflect.Type) (*plan, *schema, error) {
	if entry.typ == t {
		return entry.plan, entry.resolved, nil
	}
	p, err := d.last.of(d.registry, t)
	if err != nil {
		return nil, nil, err
	}
	s := p.schema
	if _, hash := p.written(); hash != entry.hash {
		if s, err = d.schemaOf(entry); err != nil {
			return nil, nil, err
		}
		if err := d.match(s, p.schema, p); err != nil {
			return nil, nil, err
		}
	}
	entry.typ, entry.plan, entry.resolved = t, p, s
	return p, s, nil
}

// schemaOf reads the schema of a type that is not the same here.
func (d *Decoder) schemaOf(entry *typeEntry) (s *schema, err error) {
	if entry.schema == nil {
		entry.schema, err = readSchema(entry.text, d.spend)
	}
	return entry.schema, err
}
