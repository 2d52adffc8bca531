package codec

import (
	"encoding/binary"
	"reflect"
	"unsafe"
)

// typeKey identifies a row of the table of types of a message. named is set for a value in an
// interface, which carries the name of its type.
type typeKey struct {
	typ   reflect.Type
	named bool
}

// typeRow is a row of the table of types that the Encoder writes.
type typeRow struct {
	plan    *plan
	name    string
	pointer bool // the value is a pointer to the named type
}

// typeIndex returns the number of k's row in the table of types of the message. If there is none,
// it adds a row with p, the name, and whether the value is a pointer to the named type.
func (e *Encoder) typeIndex(k typeKey, p *plan, name string, pointer bool) int {
	n, ok := e.types.find(k)
	if !ok {
		n = e.types.add(k)
		e.typeRows = append(e.typeRows, typeRow{p, name, pointer})
	}
	return n
}

// typeEntry is a row of the table of types of a received message. Its name and text are part of the
// message.
type typeEntry struct {
	name    []byte
	pointer bool
	hash    uint64
	text    []byte

	schema *schema // decoded from text when it is needed

	// Results of the last call of resolve.
	typ      reflect.Type
	plan     *plan
	resolved *schema
}

// minType is the minimum size of a row in bytes.
const minType = 11

func (d *Decoder) readTypes(c *cursor) error {
	n, err := c.count(minType)
	if err != nil {
		return err
	}
	if err := d.charge(n * int(unsafe.Sizeof(typeEntry{}))); err != nil {
		return err
	}
	for range n {
		var entry typeEntry
		if entry.name, err = c.text(); err != nil {
			return err
		}
		pointer, err := c.byte()
		if err != nil {
			return err
		}
		if pointer > 1 {
			return corruptf("type with the flag %d", pointer)
		}
		entry.pointer = pointer == 1
		hash, err := c.next(8)
		if err != nil {
			return err
		}
		entry.hash = binary.LittleEndian.Uint64(hash)
		if entry.text, err = c.text(); err != nil {
			return err
		}
		d.types = append(d.types, entry)
	}
	return nil
}

func (d *Decoder) typeEntry(n uint64) (*typeEntry, error) {
	if n >= uint64(len(d.types)) {
		return nil, corruptf("type %d of %d", n, len(d.types))
	}
	return &d.types[n], nil
}

// resolve returns the plan of t, which has the functions that decode values of t, and the schema to
// pass to it for a value whose type is entry, a row of the message's table of types. If the hashes
// of the two types' schemas are equal, that is the schema of the plan; a wrong hash can only spoil
// the sender's own message. Otherwise it is the sender's schema, after match has compared it with
// that of the plan. The error is that of Registry.plan or match, or matches ErrCorrupt or ErrLimit.
func (d *Decoder) resolve(entry *typeEntry, t reflect.Type) (*plan, *schema, error) {
	if entry.typ == t {
		return entry.plan, entry.resolved, nil
	}
	p, err := d.last.of(d.registry, t)
	if err != nil {
		return nil, nil, err
	}
	s := p.schema
	if _, hash := p.encoded(); hash != entry.hash {
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

// schemaOf returns the schema that the sender gave for the type of entry. The first call decodes it
// from entry.text and keeps it in entry. The errors are those of readSchema; the schema is then nil.
func (d *Decoder) schemaOf(entry *typeEntry) (*schema, error) {
	if entry.schema != nil {
		return entry.schema, nil
	}
	s, err := readSchema(entry.text, d.charge)
	if err != nil {
		return nil, err
	}
	entry.schema = s
	return s, nil
}

// interfaceHeader is the memory layout of an interface. For a pointer type, data is the
// pointer; for most other types, data points to the value.
type interfaceHeader struct{ typ, data unsafe.Pointer }

func (p *plan) encodeInterface(e *Encoder, from unsafe.Pointer) error {
	v := reflect.NewAt(p.typ, from).Elem().Elem()
	if !v.IsValid() {
		e.WriteUint(0)
		return nil
	}
	if err := e.descend(); err != nil {
		return err
	}
	if err := e.typed(v, from); err != nil {
		return addSegment(err, ".("+v.Type().String()+")")
	}
	e.depth--
	return nil
}

// typed appends the number of the type of v, plus 1, and v to the message. v is the value in the
// interface at address from. If the type is not registered but implements error, v is encoded like
// a variable of type error. For any other unregistered type the error matches ErrType, or
// ErrUnsupported if the type is refused; for a registered one it is that of encoding the value.
func (e *Encoder) typed(v reflect.Value, from unsafe.Pointer) error {
	t := v.Type()
	name, pointer, ok := e.registry.nameOf(t)
	switch {
	case ok && t.Kind() == reflect.Pointer:
		from = unsafe.Pointer(&(*interfaceHeader)(from).data)
	case ok:
		box := reflect.New(t)
		box.Elem().Set(v)
		from = box.UnsafePointer()
	case t.Implements(errorType):
		err := v.Interface().(error)
		name, pointer, t = errorType.String(), false, errorType
		from = unsafe.Pointer(&err)
	default:
		return e.registry.unregisteredError(t)
	}
	p, err := e.registry.plan(t)
	if err != nil {
		return err
	}
	e.WriteUint(uint64(e.typeIndex(typeKey{t, true}, p, name, pointer)) + 1)
	return p.encode(e, from)
}

func (p *plan) decodeInterface(d *Decoder, to unsafe.Pointer) error {
	zero(p.typ, to)
	n, err := d.uvarint()
	if err != nil || n == 0 {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	if err := d.typed(n-1, reflect.NewAt(p.typ, to).Elem()); err != nil {
		return err
	}
	d.leave()
	return nil
}

// typed decodes a value whose type is row n of the message's table of types, and stores it in the
// interface variable to, which must be addressable. The error is a *TypeError if the registered
// type does not implement that interface, matches ErrType if the name of the type is not registered
// here, or is that of decoding. The variable may then be partly written.
func (d *Decoder) typed(n uint64, to reflect.Value) error {
	entry, err := d.typeEntry(n)
	if err != nil {
		return err
	}
	t, err := d.registry.typeOf(entry.name, entry.pointer)
	if err != nil {
		return err
	}
	if !t.Implements(to.Type()) {
		return &TypeError{Wire: t.String(), Go: to.Type().String()}
	}
	p, s, err := d.resolve(entry, t)
	if err != nil {
		return addSegment(err, ".("+t.String()+")")
	}
	if err := d.charge(int(t.Size()) + 16); err != nil {
		return err
	}
	if t.Kind() == reflect.Pointer { // in place
		to.Set(reflect.Zero(t))
		err = p.decode(d, s, unsafe.Pointer(&(*interfaceHeader)(to.Addr().UnsafePointer()).data))
	} else {
		box := reflect.New(t)
		if err = p.decode(d, s, box.UnsafePointer()); err == nil {
			to.Set(box.Elem())
		}
	}
	if err != nil {
		return addSegment(err, ".("+t.String()+")")
	}
	return nil
}
