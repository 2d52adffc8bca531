package codec

import (
	"reflect"
	"unsafe"
)

// The forms of an error.
const (
	errorNil      = 0
	errorSentinel = 1 // name, text
	errorTyped    = 2 // text, index of a type, value
	errorOpaque   = 3 // name of the type, text, number of wrapped errors, these
)

func encodeErrorAt(e *Encoder, from unsafe.Pointer) error { return e.error(*(*error)(from)) }

func decodeErrorAt(d *Decoder, to unsafe.Pointer) (err error) {
	*(*error)(to) = nil
	*(*error)(to), err = d.error()
	return err
}

func (e *Encoder) error(v error) error {
	if v == nil {
		e.Uint(errorNil)
		return nil
	}
	if err := e.descend(); err != nil {
		return err
	}
	if name := e.registry.sentinelName(v); name != "" {
		e.Uint(errorSentinel)
		e.String(name)
		e.String(v.Error())
	} else if _, _, known := e.registry.nameOf(reflect.TypeOf(v)); known {
		if err := e.typedError(v); err != nil {
			return at(err, ".("+reflect.TypeOf(v).String()+")")
		}
	} else if err := e.opaqueError(e.registry.opaque(v)); err != nil {
		return err
	}
	e.depth--
	return nil
}

func (e *Encoder) typedError(v error) error {
	t := reflect.TypeOf(v)
	name, pointer, _ := e.registry.nameOf(t)
	p, err := e.registry.plan(t)
	if err != nil {
		return err
	}
	e.Uint(errorTyped)
	e.String(v.Error()) // for those who do not know the type
	e.Uint(uint64(e.use(typeKey{t, true}, p, name, pointer)))
	box := reflect.New(t)
	box.Elem().Set(reflect.ValueOf(v))
	return p.encode(e, box.UnsafePointer())
}

func (e *Encoder) opaqueError(o *RemoteError) error {
	e.Uint(errorOpaque)
	e.String(o.Type)
	e.String(o.Text)
	e.Uint(uint64(len(o.wrapped)))
	for _, inner := range o.wrapped {
		if err := e.error(inner); err != nil {
			return err
		}
	}
	return nil
}

func (d *Decoder) error() (v error, err error) {
	form, err := d.uvarint()
	if err != nil || form == errorNil {
		return nil, err
	}
	if err := d.enter(); err != nil {
		return nil, err
	}
	switch form {
	case errorSentinel:
		v, err = d.sentinelError()
	case errorTyped:
		v, err = d.typedError()
	case errorOpaque:
		v, err = d.opaqueError()
	default:
		err = corrupt("form %d of an error", form)
	}
	d.leave()
	return v, err
}

// sentinelError finds an error by its name. Of one that is not registered here name
// and text are left.
func (d *Decoder) sentinelError() (error, error) {
	name, err := d.text()
	if err != nil {
		return nil, err
	}
	text, err := d.text()
	if err != nil {
		return nil, err
	}
	if v, ok := d.registry.sentinel(string(name)); ok {
		return v, nil
	}
	return d.unknownError(name, text)
}

// unknownError stands for an error that is not registered here.
func (d *Decoder) unknownError(name, text []byte) (error, error) {
	err := d.spend(len(name) + len(text) + int(unsafe.Sizeof(RemoteError{})))
	return &RemoteError{Type: string(name), Text: string(text)}, err
}

// typedError reads an error of a registered type. Of one that is not registered
// here name and text are left.
func (d *Decoder) typedError() (error, error) {
	text, err := d.text()
	if err != nil {
		return nil, err
	}
	n, err := d.uvarint()
	if err != nil {
		return nil, err
	}
	entry, err := d.typeEntry(n)
	if err != nil {
		return nil, err
	}
	if _, err := d.registry.typeOf(entry.name, entry.pointer); err != nil {
		unknown, err := d.unknownError(entry.name, text)
		if err != nil {
			return nil, err
		}
		return unknown, d.skipTyped(n)
	}
	var v error
	if err := d.typed(n, reflect.ValueOf(&v).Elem()); err != nil {
		return nil, err
	}
	if p := reflect.ValueOf(v); p.Kind() == reflect.Pointer && p.IsNil() { // whose Error method hardly works
		return d.unknownError(entry.name, text)
	}
	return v, nil
}

func (d *Decoder) opaqueError() (error, error) {
	if err := d.spend(int(unsafe.Sizeof(RemoteError{}))); err != nil {
		return nil, err
	}
	var err error
	o := &RemoteError{}
	if o.Type, err = d.String(); err != nil {
		return nil, err
	}
	if o.Text, err = d.String(); err != nil {
		return nil, err
	}
	n, err := d.count(1)
	if err != nil || n == 0 {
		return o, err
	}
	if err := d.spendElements(n, int(unsafe.Sizeof(error(nil)))); err != nil {
		return nil, err
	}
	o.wrapped = make([]error, n)
	for i := range o.wrapped {
		if o.wrapped[i], err = d.error(); err != nil {
			return nil, err
		}
		if o.wrapped[i] == nil {
			return nil, corrupt("an error wraps nil")
		}
	}
	return o, nil
}

// errorSchema is the schema of wrapped errors.
var errorSchema = leafSchema(kindError, "")

func (d *Decoder) skipError() error {
	form, err := d.uvarint()
	if err != nil || form == errorNil {
		return err
	}
	if _, err := d.text(); err != nil { // all forms have one, or a name
		return err
	}
	switch form {
	case errorSentinel:
		_, err := d.text()
		return err
	case errorTyped:
		n, err := d.uvarint()
		if err != nil {
			return err
		}
		return d.skipTyped(n)
	case errorOpaque:
		return d.skipOpaque()
	}
	return corrupt("form %d of an error", form)
}

func (d *Decoder) skipOpaque() error {
	if _, err := d.text(); err != nil {
		return err
	}
	n, err := d.count(1)
	if err != nil {
		return err
	}
	return d.skipAll(n, errorSchema, nil)
}
