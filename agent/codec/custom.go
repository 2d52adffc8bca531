package codec

import (
	"encoding/binary"
	"math"
	"reflect"
	"unsafe"
)

// Appender is implemented by a type with a custom encoding. AppendTensorpipe writes a value with
// the methods of the Encoder, which it must not keep. Its receiver may be a value or a pointer; a
// pointer is never nil. An error that it returns fails the Encode, with the path to the value.
type Appender interface {
	AppendTensorpipe(e *Encoder) error
}

// Parser is implemented by the pointer to a type that implements Appender. ParseTensorpipe reads
// what AppendTensorpipe wrote, the same items in the same order and nothing else, into its
// receiver, which points to a zero value. An error that it returns fails the Decode, with the path
// to the value.
type Parser interface {
	ParseTensorpipe(d *Decoder) error
}

// Namer is implemented by a type, or the pointer to it, whose name in messages does not depend on
// its Go type, so that both ends may use different types for the same encoding. TensorpipeName is
// called on a zero value; names should begin with that of a package.
type Namer interface{ TensorpipeName() string }

// TypeName returns the name of t for people and other processes: that of Namer, or the Go type with
// the name of its package.
func TypeName(t reflect.Type) string {
	if t.Kind() != reflect.Interface && reflect.PointerTo(t).Implements(namerType) {
		return reflect.New(t).Interface().(Namer).TensorpipeName()
	}
	if t.Kind() == reflect.Pointer && t.Elem().Kind() != reflect.Pointer {
		return "*" + TypeName(t.Elem())
	}
	return t.String()
}

var namerType = reflect.TypeFor[Namer]()

// customPrefix is the size of the length that precedes a custom encoding.
const customPrefix = 4

// custom sets the functions of p that encode and decode values of its type to ones that call encode
// and decode, functions of the application, with the address of a variable of the type. Before
// decode is called, the variable is set to zero. name identifies the encoding in messages and must
// be the same at both ends. p keeps both functions.
func (p *plan) custom(name string, encode func(*Encoder, unsafe.Pointer) error, decode func(*Decoder, unsafe.Pointer) error) {
	p.schema.name = name
	p.leaf(kindCustom, func(e *Encoder, from unsafe.Pointer) error {
		return e.custom(from, encode)
	}, func(d *Decoder, to unsafe.Pointer) error {
		zero(p.typ, to)
		return d.custom(to, decode)
	})
}

func (e *Encoder) custom(from unsafe.Pointer, encode func(*Encoder, unsafe.Pointer) error) error {
	if err := e.descend(); err != nil {
		return err
	}
	start := len(e.buf)
	e.buf = append(e.buf, 0, 0, 0, 0)
	if err := encode(e, from); err != nil {
		return err
	}
	if e.err != nil {
		return e.err
	}
	n := len(e.buf) - start - customPrefix
	if uint64(n) > math.MaxUint32 {
		return errorf(ErrLimit, "a custom encoding of %d bytes", n)
	}
	binary.LittleEndian.PutUint32(e.buf[start:], uint32(n))
	e.depth--
	return nil
}

// custom reads the length of a custom encoding and calls decode, which must read exactly that many
// bytes and set the variable at address to. Until decode returns, the Decoder ends after these
// bytes. The error is that of decode, or of a Decode that it called; or it matches ErrCorrupt if
// decode did not read all bytes or the message is too short, or ErrLimit if the encoding is nested
// too deep. After an error the Decoder must not be used until Reset.
func (d *Decoder) custom(to unsafe.Pointer, decode func(*Decoder, unsafe.Pointer) error) error {
	n, err := d.customLength()
	if err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	outer := d.data
	d.data = d.data[:d.pos+n]
	if err := decode(d, to); err != nil {
		return err
	}
	if d.err != nil {
		return d.err
	}
	if d.remaining() > 0 {
		return corruptf("%d bytes of a custom encoding were not read", d.remaining())
	}
	d.data = outer
	d.leave()
	return nil
}

// hook sets the functions of p that encode and decode values of its type to ones that call those of
// h, which the application has registered with Hook. If the type is a pointer type, nil and
// repeated pointers are encoded as those of any pointer type, and h is called only once for each
// pointer that is not nil; decoding fails with an error that matches ErrType if h leaves the
// pointer nil.
func (c *compiler) hook(p *plan, h hook) {
	if p.typ.Kind() != reflect.Pointer {
		p.custom(h.name, h.encode, h.decode)
		return
	}
	p.schema.kind = kindPointer
	p.schema.elem = leafSchema(kindCustom, h.name)
	p.encode = func(e *Encoder, from unsafe.Pointer) error {
		return e.object(p.typ, *(*unsafe.Pointer)(from), func(e *Encoder, _ unsafe.Pointer) error {
			return e.custom(from, h.encode)
		})
	}
	decode := func(d *Decoder, _ *schema, to unsafe.Pointer) error {
		if err := d.custom(to, h.decode); err != nil {
			return err
		}
		if *(*unsafe.Pointer)(to) == nil {
			return errorf(ErrType, "the hook %q made no value", h.name)
		}
		return nil
	}
	p.decode = func(d *Decoder, s *schema, to unsafe.Pointer) error { return d.object(p, s, to, decode) }
}
