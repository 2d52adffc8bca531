package codec

import (
	"reflect"
	"unsafe"
)

// Forms of an encoded error.
const (
	errorNil      = 0
	errorSentinel = 1 // name, text
	errorTyped    = 2 // text, index of a type, value
	errorOpaque   = 3 // name of the type, text, number of wrapped errors, these
)

func (e *Encoder) error(v error) error {
	if v == nil {
		e.WriteUint(errorNil)
		return nil
	}
	if err := e.descend(); err != nil {
		return err
	}
	if name := e.registry.sentinelName(v); name != "" {
		e.WriteUint(errorSentinel)
		e.WriteString(name)
		e.WriteString(v.Error())
	} else if _, _, known := e.registry.nameOf(reflect.TypeOf(v)); known {
		if err := e.typedError(v); err != nil {
			return addSegment(err, ".("+reflect.TypeOf(v).String()+")")
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
	e.WriteUint(errorTyped)
	e.WriteString(v.Error()) // for receivers that do not know the type
	e.WriteUint(uint64(e.typeIndex(typeKey{t, true}, p, name, pointer)))
	box := reflect.New(t)
	box.Elem().Set(reflect.ValueOf(v))
	return p.encode(e, box.UnsafePointer())
}

func (e *Encoder) opaqueError(o *RemoteError) error {
	e.WriteUint(errorOpaque)
	e.WriteString(o.Type)
	e.WriteString(o.Text)
	e.WriteUint(uint64(len(o.wrapped)))
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
		err = corruptf("form %d of an error", form)
	}
	d.leave()
	return v, err
}

// sentinelError decodes an error value that the sender had registered, such as io.EOF. The first
// result is the error value registered here under the same name, or, if there is none, a
// *RemoteError with the name and text. The second result is not nil if decoding failed: it matches
// ErrCorrupt or ErrLimit, and the first result must not be used.
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

// unknownError returns a new *RemoteError with copies of name and text, for an error that is not
// registered here. If the memory that the message may use is exceeded, the second result matches
// ErrLimit and the first must not be used.
func (d *Decoder) unknownError(name, text []byte) (error, error) {
	err := d.charge(len(name) + len(text) + int(unsafe.Sizeof(RemoteError{})))
	return &RemoteError{Type: string(name), Text: string(text)}, err
}

// typedError decodes an error whose type the sender had registered. The first result is the error
// as a value of that type. If the type is not registered here, or the value is a nil pointer, it is
// a *RemoteError with the name of the type and the text. The second result is not nil if decoding
// failed; the first must not be used then.
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
	if p := reflect.ValueOf(v); p.Kind() == reflect.Pointer && p.IsNil() { // its Error method would probably panic
		return d.unknownError(entry.name, text)
	}
	return v, nil
}

func (d *Decoder) opaqueError() (error, error) {
	if err := d.charge(int(unsafe.Sizeof(RemoteError{}))); err != nil {
		return nil, err
	}
	var err error
	o := &RemoteError{}
	if o.Type, err = d.ReadString(); err != nil {
		return nil, err
	}
	if o.Text, err = d.ReadString(); err != nil {
		return nil, err
	}
	n, err := d.count(1)
	if err != nil || n == 0 {
		return o, err
	}
	if err := d.chargeElements(n, int(unsafe.Sizeof(error(nil)))); err != nil {
		return nil, err
	}
	o.wrapped = make([]error, n)
	for i := range o.wrapped {
		if o.wrapped[i], err = d.error(); err != nil {
			return nil, err
		}
		if o.wrapped[i] == nil {
			return nil, corruptf("an error wraps nil")
		}
	}
	return o, nil
}

// errorSchema is the schema of an error that another error wraps.
var errorSchema = leafSchema(kindError, "")

func (d *Decoder) skipError() error {
	form, err := d.uvarint()
	if err != nil || form == errorNil {
		return err
	}
	if _, err := d.text(); err != nil { // every form begins with a text
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
		if _, err := d.text(); err != nil {
			return err
		}
		n, err := d.count(1)
		if err != nil {
			return err
		}
		return d.skipAll(n, errorSchema, nil)
	}
	return corruptf("form %d of an error", form)
}

// RemoteError represents a decoded error that is not registered at both ends, as a value or by its
// type. It has the type or registered name of the original, and its text. If the original was not
// registered at the sender, errors.Is and errors.As also find the errors that it wrapped, as far as
// these are registered at both ends. Otherwise the wrapped errors are lost.
type RemoteError struct {
	Type string // the type of the original, such as "*mypkg.Error", or its registered name
	Text string // the text of the original

	wrapped []error
}

func (e *RemoteError) Error() string { return e.Text }

// Unwrap returns the errors that the original error wrapped, and the registered errors for which
// its method Is returned true. It returns nil if there are none, or if the sender had registered
// the original. The slice belongs to e and must not be modified.
func (e *RemoteError) Unwrap() []error { return e.wrapped }

// opaque returns err itself if it is a *RemoteError. Otherwise it returns a new RemoteError with
// the type and text of err, the errors that err wraps, and all errors registered in r for which the
// method Is of err returns true. err must be neither nil nor registered. opaque calls that method
// with r.mu locked for reading, so the caller must not hold r.mu.
func (r *Registry) opaque(err error) *RemoteError {
	if remote, ok := err.(*RemoteError); ok && remote != nil {
		return remote
	}
	o := &RemoteError{Type: reflect.TypeOf(err).String(), Text: err.Error()}
	switch err := err.(type) {
	case interface{ Unwrap() error }:
		if inner := err.Unwrap(); inner != nil {
			o.wrapped = []error{inner}
		}
	case interface{ Unwrap() []error }:
		for _, inner := range err.Unwrap() {
			if inner != nil {
				o.wrapped = append(o.wrapped, inner)
			}
		}
	}
	if is, ok := err.(interface{ Is(error) bool }); ok {
		r.mu.RLock()
		defer r.mu.RUnlock()
		for _, sentinel := range r.sentinels { // syscall.Errno is some of them
			if is.Is(sentinel) {
				o.wrapped = append(o.wrapped, sentinel)
			}
		}
	}
	return o
}
