package codec

import (
	"encoding"
	"reflect"
	"sync"
	"time"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// plan is how values of one type are encoded and decoded. It never changes once
// the compiler is done.
type plan struct {
	typ    reflect.Type
	schema *schema
	key    *plan
	elem   *plan
	fields []field

	// encode appends the value at p.
	encode func(e *Encoder, p unsafe.Pointer) error

	// decode reads a value of the schema that the sender has, which fits that of
	// the plan and is the same pointer where the sender's type is the same, and
	// overwrites what is at p.
	decode func(d *Decoder, s *schema, p unsafe.Pointer) error

	once sync.Once // guards what follows
	text []byte    // the schema as it travels
	hash uint64
}

// field is a field of a struct that travels.
type field struct {
	name   string // on the wire
	offset uintptr
	plan   *plan
}

// written is the schema as it travels, and its hash.
func (p *plan) written() ([]byte, uint64) {
	p.once.Do(func() { p.text, p.hash = p.schema.written() })
	return p.text, p.hash
}

// compiler makes the plans of a type and of all that it consists of.
type compiler struct {
	hooks    map[reflect.Type]hook
	refusals []refusal
	known    map[reflect.Type]*plan
	fresh    map[reflect.Type]*plan // of types that refer to themselves some are not ready
}

// leaf describes a type without parts.
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

// compile chooses among the encodings that a type may have.
func (c *compiler) compile(p *plan) error {
	if h, ok := c.hooks[p.typ]; ok {
		c.hook(p, h)
		return nil
	}
	if err := refusalOf(c.refusals, p.typ); err != nil {
		return err
	}
	switch p.typ {
	case reflect.TypeFor[*tensor.Tensor]():
		p.leaf(kindTensor, encodeTensor, decodeTensor)
		return nil
	case sparseType:
		p.schema.kind, p.encode, p.decode = kindSparse, encodeSparse, p.decodeSparse
		return nil
	case reflect.TypeFor[time.Time]():
		p.leaf(kindTime, encodeTime, decodeTime)
		return nil
	case errorType:
		p.leaf(kindError, encodeErrorAt, decodeErrorAt)
		return nil
	}
	if k := p.typ.Kind(); k != reflect.Pointer && k != reflect.Interface {
		if done, err := compileMethods(p); done || err != nil {
			return err
		}
	}
	return c.kind(p)
}

// compileMethods uses an encoding that the type has itself, if it has one.
func compileMethods(p *plan) (done bool, err error) {
	to := reflect.PointerTo(p.typ)
	switch {
	case to.Implements(appenderType) && to.Implements(parserType):
		compileOwn(p)
	case to.Implements(appenderType) || to.Implements(parserType):
		return false, fault(ErrUnsupported, "%v has one of AppendTensorpipe and ParseTensorpipe but not the other", p.typ)
	case to.Implements(marshalerType) && to.Implements(unmarshalerType):
		compileBinary(p)
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
		return c.mapping(p)
	case reflect.Struct:
		return c.structure(p)
	case reflect.Pointer:
		return c.pointer(p)
	case reflect.Interface:
		compileInterface(p)
		return nil
	default:
		return compileScalar(p)
	}
}
