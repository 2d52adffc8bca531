package codec

import (
	"reflect"
	"unsafe"
)

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
	if err := e.typed(v); err != nil {
		return at(err, ".("+v.Type().String()+")")
	}
	e.depth--
	return nil
}

// typed writes a value behind the number of its registered type. Errors of
// types that are not registered travel as errors do.
func (e *Encoder) typed(v reflect.Value) error {
	t := v.Type()
	name, pointer, ok := e.registry.nameOf(t)
	if !ok && t.Implements(errorType) {
		err := v.Interface().(error)
		name, pointer, t = errorType.String(), false, errorType
		v = reflect.ValueOf(&err).Elem()
		ok = true
	}
	if !ok {
		return e.registry.stranger(t)
	}
	p, err := e.registry.plan(t)
	if err != nil {
		return err
	}
	e.Uint(uint64(e.use(typeKey{t, true}, p, name, pointer)) + 1)
	if v.CanAddr() {
		return p.encode(e, v.Addr().UnsafePointer())
	}
	box := reflect.New(t)
	box.Elem().Set(v)
	return p.encode(e, box.UnsafePointer())
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
	v, err := d.typed(n-1, p.typ)
	if err != nil {
		return err
	}
	d.leave()
	reflect.NewAt(p.typ, to).Elem().Set(v)
	return nil
}

// typed reads a value of a registered type that goes to an interface.
func (d *Decoder) typed(n uint64, to reflect.Type) (v reflect.Value, err error) {
	entry, err := d.typeEntry(n)
	if err != nil {
		return v, err
	}
	t, err := d.registry.typeOf(string(entry.name), entry.pointer)
	if err != nil {
		return v, err
	}
	if !t.Implements(to) {
		return v, &TypeError{Wire: t.String(), Go: to.String()}
	}
	p, s, err := d.resolve(entry, t)
	if err != nil {
		return v, at(err, ".("+t.String()+")")
	}
	if err := d.spend(int(t.Size()) + 16); err != nil {
		return v, err
	}
	box := reflect.New(t)
	if err := p.decode(d, s, box.UnsafePointer()); err != nil {
		return v, at(err, ".("+t.String()+")")
	}
	return box.Elem(), nil
}
