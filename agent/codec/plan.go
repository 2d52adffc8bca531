package codec

import (
	"encoding"
	"reflect"
	"sync"
	"time"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// plan has the functions that encode and decode values of one type. After the compiler has finished
// it, only the fields guarded by once change, and it may be used concurrently.
type plan struct {
	typ    reflect.Type
	schema *schema
	key    *plan
	elem   *plan
	fields []field

	// encode appends the value at p to the message.
	encode func(e *Encoder, p unsafe.Pointer) error

	// decode decodes a value of the schema s to the variable at p, which it overwrites. s
	// is the sender's schema and has been matched with the plan; it is p.schema if both
	// ends have the same type.
	decode func(d *Decoder, s *schema, p unsafe.Pointer) error

	once sync.Once // guards the fields below
	text []byte    // the encoded schema
	hash uint64
}

// field is a struct field that is encoded.
type field struct {
	name   string // on the wire
	offset uintptr
	plan   *plan
}

// encoded returns the encoded schema of p and its hash. The first call computes them; all calls
// return the same slice, which must not be modified.
func (p *plan) encoded() ([]byte, uint64) {
	p.once.Do(func() { p.text, p.hash = p.schema.encoded() })
	return p.text, p.hash
}

// compiler makes the plans of a type and of all types that it contains. The caller holds the lock
// of the Registry and copies fresh to its plans when there was no error.
type compiler struct {
	hooks    map[reflect.Type]hook
	refusals []refusal
	known    map[reflect.Type]*plan
	fresh    map[reflect.Type]*plan // made by this compiler; incomplete ones occur in recursive types
}

// leaf makes k the kind of the schema of p, and sets the functions of p that encode and decode
// values of its type to ones that call encode and decode with the address of a variable of the
// type. The type must have no element types. p keeps both functions.
func (p *plan) leaf(k kind, encode func(*Encoder, unsafe.Pointer) error, decode func(*Decoder, unsafe.Pointer) error) {
	p.schema.kind, p.encode = k, encode
	p.decode = func(d *Decoder, _ *schema, at unsafe.Pointer) error { return decode(d, at) }
}

func (c *compiler) plan(t reflect.Type) (*plan, error) {
	if p, ok := c.known[t]; ok {
		return p, nil
	}
	if p, ok := c.fresh[t]; ok {
		return p, nil
	}
	p := &plan{typ: t, schema: &schema{}}
	c.fresh[t] = p
	if err := c.compile(p); err != nil {
		return nil, err
	}
	p.schema.measure()
	return p, nil
}

var (
	appenderType    = reflect.TypeFor[Appender]()
	parserType      = reflect.TypeFor[Parser]()
	marshalerType   = reflect.TypeFor[encoding.BinaryMarshaler]()
	unmarshalerType = reflect.TypeFor[encoding.BinaryUnmarshaler]()
)

// compile sets the schema of p and the functions that encode and decode values of its type. The
// first of these applies: a hook registered for the type, an encoding of this package for that very
// type (such as time.Time), methods of the type for a custom encoding, its reflect.Kind. The error
// matches ErrUnsupported if values of the type cannot be encoded or are refused.
func (c *compiler) compile(p *plan) error {
	if h, ok := c.hooks[p.typ]; ok {
		c.hook(p, h)
		return nil
	}
	if err := checkRefused(c.refusals, p.typ); err != nil {
		return err
	}
	switch p.typ {
	case reflect.TypeFor[*tensor.Tensor]():
		p.leaf(kindTensor, func(e *Encoder, from unsafe.Pointer) error {
			return e.WriteTensor(*(**tensor.Tensor)(from))
		}, func(d *Decoder, to unsafe.Pointer) (err error) {
			*(**tensor.Tensor)(to), err = d.ReadTensor()
			return err
		})
		return nil
	case sparseType:
		p.schema.kind, p.encode, p.decode = kindSparse, encodeSparse, p.decodeSparse
		return nil
	case reflect.TypeFor[time.Time]():
		p.leaf(kindTime, encodeTime, decodeTime)
		return nil
	case errorType:
		p.leaf(kindError, func(e *Encoder, from unsafe.Pointer) error {
			return e.error(*(*error)(from))
		}, func(d *Decoder, to unsafe.Pointer) (err error) {
			*(*error)(to) = nil
			*(*error)(to), err = d.error()
			return err
		})
		return nil
	}
	if k := p.typ.Kind(); k != reflect.Pointer && k != reflect.Interface {
		if done, err := compileMethods(p); done || err != nil {
			return err
		}
	}
	return c.kind(p)
}

// compileMethods sets the functions of p that encode and decode values of its type, and returns
// true, if the type has methods for a custom encoding: those of Appender and Parser, or of
// encoding.BinaryMarshaler and BinaryUnmarshaler. If the type has neither pair, done is false and p
// does not change. If it has only one of AppendTensorpipe and ParseTensorpipe, the error matches
// ErrUnsupported.
func compileMethods(p *plan) (done bool, err error) {
	to := reflect.PointerTo(p.typ)
	switch {
	case to.Implements(appenderType) && to.Implements(parserType):
		p.custom(TypeName(p.typ), func(e *Encoder, from unsafe.Pointer) error {
			return reflect.NewAt(p.typ, from).Interface().(Appender).AppendTensorpipe(e)
		}, func(d *Decoder, to unsafe.Pointer) error {
			return reflect.NewAt(p.typ, to).Interface().(Parser).ParseTensorpipe(d)
		})
	case to.Implements(appenderType) || to.Implements(parserType):
		return false, errorf(ErrUnsupported, "%v has one of AppendTensorpipe and ParseTensorpipe but not the other", p.typ)
	case to.Implements(marshalerType) && to.Implements(unmarshalerType):
		p.leaf(kindBinary, func(e *Encoder, from unsafe.Pointer) error {
			text, err := reflect.NewAt(p.typ, from).Interface().(encoding.BinaryMarshaler).MarshalBinary()
			if err == nil {
				e.WriteBytes(text)
			}
			return err
		}, func(d *Decoder, to unsafe.Pointer) error {
			text, err := d.text()
			if err != nil {
				return err
			}
			if err := d.charge(len(text)); err != nil {
				return err
			}
			zero(p.typ, to)
			return reflect.NewAt(p.typ, to).Interface().(encoding.BinaryUnmarshaler).UnmarshalBinary(text)
		})
	default:
		return false, nil
	}
	return true, nil
}

func (c *compiler) kind(p *plan) (err error) {
	switch p.typ.Kind() {
	case reflect.Slice:
		return c.slice(p)
	case reflect.Array:
		return c.array(p)
	case reflect.Map:
		return c.mapType(p)
	case reflect.Struct:
		return c.structType(p)
	case reflect.Pointer:
		return c.pointer(p)
	case reflect.Interface:
		p.leaf(kindInterface, p.encodeInterface, p.decodeInterface)
		return nil
	default:
		return compileScalar(p)
	}
}
