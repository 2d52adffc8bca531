package codec

import (
	"reflect"
	"unsafe"
)

// interfaceHeader is what an interface is in memory. The data of a pointer is the pointer
// itself; that of most other values is where they are.
type interfaceHeader struct{ typ, data unsafe.Pointer }

func compileInterface(p *plan) {
	p.leaf(kindInterface, p.encodeInterface, p.decodeInterface)
}

func (p *plan) encodeInterface(e *Encoder, from unsafe.Pointer) error {
	v := reflect.NewAt(p.typ, from).Elem().Elem()
	if !v.IsValid() {
		e.Uint(0)
		return nil
	}
	if err := e.descend(); err != nil {
		return err
	}
	if err := e.typed(v, from); err != nil {
		return at(err, ".("+v.Type().String()+")")
	}
	e.depth--
	return nil
}

// typed writes v, the value of the interface at from, behind the number of its registered
// type. Errors of types that are not registered travel as errors do.
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
		return e.registry.stranger(t)
	}
	p, err := e.registry.plan(t)
	if err != nil {
		return err
	}
	e.Uint(uint64(e.use(typeKey{t, true}, p, name, pointer)) + 1)
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

// typed reads a value of a registered type to an interface.
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
		return at(err, ".("+t.String()+")")
	}
	if err := d.spend(int(t.Size()) + 16); err != nil {
		return err
	}
	if err := p.decodeBoxed(d, s, to); err != nil {
		return at(err, ".("+t.String()+")")
	}
	return nil
}

// decodeBoxed reads a value to an interface. A pointer goes there at once, other values
// by way of memory of their own.
func (p *plan) decodeBoxed(d *Decoder, s *schema, to reflect.Value) error {
	if p.typ.Kind() == reflect.Pointer {
		to.Set(reflect.Zero(p.typ))
		return p.decode(d, s, unsafe.Pointer(&(*interfaceHeader)(to.Addr().UnsafePointer()).data))
	}
	box := reflect.New(p.typ)
	if err := p.decode(d, s, box.UnsafePointer()); err != nil {
		return err
	}
	to.Set(box.Elem())
	return nil
}
