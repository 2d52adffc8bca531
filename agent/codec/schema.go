package codec

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"
)

// kind determines the encoding of a value. The numbers of the kinds are part of the format.
type kind uint8

const (
	kindBool       kind = iota + 1 // one byte, 0 or 1
	kindByte                       // one byte, of an array
	kindInt                        // a varint, zigzag
	kindUint                       // a varint
	kindFloat32                    // 4 bytes
	kindFloat64                    // 8 bytes
	kindComplex64                  // 8 bytes
	kindComplex128                 // 16 bytes
	kindString                     // length, bytes
	kindBytes                      // length + 1, bytes; 0 is nil
	kindTime                       // seconds, nanoseconds, zone
	kindSlice                      // number + 1, elements; 0 is nil
	kindArray                      // elements
	kindMap                        // number + 1, keys and elements; 0 is nil
	kindStruct                     // fields
	kindBack                       // only in an encoded schema: a struct that occurred before
	kindPointer                    // 0 is nil; 2n+1 is object n, which follows; 2n+2 is object n again
	kindInterface                  // 0 is nil; index of a type + 1, value
	kindError                      // see errorNil
	kindTensor                     // index of a view + 1; 0 is nil
	kindSparse                     // as a pointer; indices, values, shape
	kindCustom                     // length as 4 bytes, bytes of a custom encoding
	kindBinary                     // length, bytes
)

// schema describes the encoding of a type, as messages do. A recursive type has a schema that
// refers to itself.
type schema struct {
	kind   kind
	name   string // of a struct, for messages to people; of kindCustom, compared
	n      int    // elements of an array
	key    *schema
	elem   *schema
	fields []schemaField

	// width is the minimum size of an encoded value in bytes. It is 0 only if all values
	// of the type are equal.
	width int

	// height is the nesting depth of structs and arrays by value.
	height int

	// nonEmpty has the types of the fields of a struct that take bytes.
	nonEmpty []*schema

	// core is the schema that skip uses instead. For a struct in which one field takes
	// bytes it is that field, and for an array of one element it is the element, so that
	// skipping takes at most one step per byte, however the type is nested.
	core *schema
}

type schemaField struct {
	name string
	typ  *schema
}

// leafSchema returns a new schema of a type that has kind k and no element types. name is "" unless
// k is kindCustom.
func leafSchema(k kind, name string) *schema {
	s := &schema{kind: k, name: name}
	s.measure()
	return s
}

// widths has the minimum size of each kind that is not a struct or array.
var widths = [...]int{
	kindBool: 1, kindByte: 1, kindInt: 1, kindUint: 1,
	kindFloat32: 4, kindFloat64: 8, kindComplex64: 8, kindComplex128: 16,
	kindString: 1, kindBytes: 1, kindTime: 3, kindSlice: 1, kindMap: 1, kindPointer: 1,
	kindInterface: 1, kindError: 1, kindTensor: 1, kindSparse: 1, kindCustom: 4, kindBinary: 1,
}

// measure computes the fields width, height, nonEmpty and core of s from its kind and parts. It
// must have been called before for the schemas of types that s contains by value.
func (s *schema) measure() {
	s.core = s
	switch s.kind {
	case kindArray:
		s.width, s.height = times(s.n, s.elem.width), s.elem.height+1
		if s.n == 1 {
			s.core = s.elem.core
		}
	case kindStruct:
		s.nonEmpty = make([]*schema, 0, len(s.fields))
		for _, f := range s.fields {
			s.width = plus(s.width, f.typ.width)
			s.height = max(s.height, f.typ.height)
			if f.typ.width > 0 {
				s.nonEmpty = append(s.nonEmpty, f.typ)
			}
		}
		s.height++
		if len(s.nonEmpty) == 1 {
			s.core = s.nonEmpty[0].core
		}
	default:
		s.width = widths[s.kind]
	}
}

// plus returns the sum of the sizes a and b, or math.MaxInt32 if the sum is larger.
func plus(a, b int) int {
	if b > math.MaxInt32-a {
		return math.MaxInt32
	}
	return a + b
}

// times returns the product of the sizes a and b, or math.MaxInt32 if the product is larger.
func times(a, b int) int {
	if a > 0 && b > math.MaxInt32/a {
		return math.MaxInt32
	}
	return a * b
}

var kindNames = [...]string{
	kindBool: "bool", kindByte: "byte", kindInt: "int", kindUint: "uint",
	kindFloat32: "float32", kindFloat64: "float64", kindComplex64: "complex64", kindComplex128: "complex128",
	kindString: "string", kindBytes: "[]byte", kindTime: "time.Time", kindInterface: "interface", kindError: "error",
	kindTensor: "*tensor.Tensor", kindSparse: "*tensor.Sparse", kindBinary: "binary",
}

// String returns the type in Go syntax for error texts. A struct or a custom encoding is shown by
// its name, so that String terminates for recursive types, and an integer as "int" or "uint",
// without its size.
func (s *schema) String() string {
	switch s.kind {
	case kindSlice:
		return "[]" + s.elem.String()
	case kindArray:
		return fmt.Sprintf("[%d]%s", s.n, s.elem)
	case kindMap:
		return "map[" + s.key.String() + "]" + s.elem.String()
	case kindPointer:
		return "*" + s.elem.String()
	case kindStruct, kindCustom:
		return s.name
	default:
		return kindNames[s.kind]
	}
}

// schemaWriter encodes a schema depth first, to dst. A struct is encoded where it occurs first;
// later occurrences refer to it by its number in structs.
type schemaWriter struct {
	dst     []byte
	structs map[*schema]int
}

func (w *schemaWriter) write(s *schema) {
	if position, ok := w.structs[s]; ok {
		w.dst = binary.AppendUvarint(append(w.dst, byte(kindBack)), uint64(position))
		return
	}
	w.dst = append(w.dst, byte(s.kind))
	switch s.kind {
	case kindSlice, kindPointer:
		w.write(s.elem)
	case kindArray:
		w.dst = binary.AppendUvarint(w.dst, uint64(s.n))
		w.write(s.elem)
	case kindMap:
		w.write(s.key)
		w.write(s.elem)
	case kindCustom:
		w.dst = appendString(w.dst, s.name)
	case kindStruct:
		w.structs[s] = len(w.structs)
		w.dst = appendString(w.dst, s.name)
		w.dst = binary.AppendUvarint(w.dst, uint64(len(s.fields)))
		for _, f := range s.fields {
			w.dst = appendString(w.dst, f.name)
			w.write(f.typ)
		}
	}
}

// encoded returns the encoded schema, as messages contain it, in new memory, and the 64-bit FNV-1a
// hash of it.
func (s *schema) encoded() (text []byte, hash uint64) {
	w := schemaWriter{structs: map[*schema]int{}}
	w.write(s)
	hash = 14695981039346656037
	for _, b := range w.dst {
		hash = (hash ^ uint64(b)) * 1099511628211
	}
	return w.dst, hash
}

func appendString(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

const (
	// maxSchema bounds the size of one encoded schema in bytes.
	maxSchema = 1 << 16

	// maxFields bounds the encoded fields of a struct.
	maxFields = 1024

	// maxHeight bounds the nesting depth of types.
	maxHeight = 100
)

// schemaReader decodes the output of schemaWriter, which may come from a hostile peer.
type schemaReader struct {
	cursor
	structs []*schema
	charge  func(bytes int) error // called before memory is allocated
}

// readSchema decodes text, a complete encoded schema of a peer, and returns the schema, which does
// not refer to text. Before it allocates a part of the schema it calls charge with its bytes,
// and stops if charge returns an error. The error matches ErrCorrupt or ErrLimit, or is
// that of charge; the schema must then not be used.
func readSchema(text []byte, charge func(int) error) (*schema, error) {
	if len(text) > maxSchema {
		return nil, errorf(ErrLimit, "description of a type of %d bytes, at most %d", len(text), maxSchema)
	}
	r := schemaReader{cursor: cursor{data: text}, charge: charge}
	s, err := r.read(0)
	if err == nil && r.remaining() > 0 {
		err = corruptf("%d bytes after the description of a type", r.remaining())
	}
	return s, err
}

func (r *schemaReader) read(depth int) (*schema, error) {
	if depth > maxHeight {
		return nil, errorf(ErrLimit, "types nested more than %d deep", maxHeight)
	}
	b, err := r.byte()
	if err != nil {
		return nil, err
	}
	k := kind(b)
	if k == kindBack {
		position, err := r.size()
		if err == nil && position >= len(r.structs) {
			err = corruptf("type %d of %d", position, len(r.structs))
		}
		if err != nil {
			return nil, err
		}
		return r.structs[position], nil // one that is still being read has height 0, see byValue
	}
	if k == 0 || k > kindBinary {
		return nil, corruptf("unknown kind %d of a type", k)
	}
	if err := r.charge(int(unsafe.Sizeof(schema{}))); err != nil {
		return nil, err
	}
	s := &schema{kind: k}
	if err := r.parts(s, depth+1); err != nil {
		return nil, err
	}
	s.measure()
	if s.height > maxHeight {
		return nil, errorf(ErrLimit, "types nested more than %d deep", maxHeight)
	}
	return s, nil
}

// parts decodes the parts of s that follow its kind in the text: element types, length, name or
// fields, depending on the kind. depth is the nesting depth of the element types. The error matches
// ErrCorrupt or ErrLimit, or is that of r.charge; s must then not be used.
func (r *schemaReader) parts(s *schema, depth int) (err error) {
	switch s.kind {
	case kindSlice, kindPointer:
		s.elem, err = r.read(depth)
	case kindArray:
		if s.n, err = r.size(); err == nil {
			s.elem, err = r.byValue(depth)
		}
	case kindMap:
		if s.key, err = r.read(depth); err == nil {
			s.elem, err = r.read(depth)
		}
	case kindCustom:
		s.name, err = r.name()
	case kindStruct:
		err = r.structType(s, depth)
	}
	return err
}

// byValue decodes and returns the schema of a type that another type contains by value, as an array
// contains its elements and a struct its fields. depth is the nesting depth of the type. The error
// matches ErrCorrupt, also for a struct that contains itself, or ErrLimit, or is that of r.charge;
// the schema must then not be used.
func (r *schemaReader) byValue(depth int) (*schema, error) {
	s, err := r.read(depth)
	if err == nil && s.kind == kindStruct && s.height == 0 {
		err = corruptf("struct %s contains itself", s.name)
	}
	return s, err
}

func (r *schemaReader) name() (string, error) {
	p, err := r.text()
	if err == nil {
		err = r.charge(len(p))
	}
	return string(p), err
}

func (r *schemaReader) structType(s *schema, depth int) (err error) {
	r.structs = append(r.structs, s)
	if s.name, err = r.name(); err != nil {
		return err
	}
	n, err := r.count(2)
	if err != nil {
		return err
	}
	if n > maxFields {
		return errorf(ErrLimit, "struct of %d fields, at most %d", n, maxFields)
	}
	// The pointer is for an element of nonEmpty.
	if err := r.charge(n * int(unsafe.Sizeof(schemaField{})+unsafe.Sizeof(s))); err != nil {
		return err
	}
	s.fields = make([]schemaField, n)
	for i := range s.fields {
		f := &s.fields[i]
		if f.name, err = r.name(); err != nil {
			return err
		}
		if f.typ, err = r.byValue(depth); err != nil {
			return err
		}
	}
	return nil
}
