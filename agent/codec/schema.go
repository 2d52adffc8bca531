package codec

import (
	"encoding/binary"
	"fmt"
	"math"
)

// kind says how the bytes of a value are made. Its numbers are part of the
// format.
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
	kindBack                       // only in a written schema: a struct that stands there already
	kindPointer                    // 0 is nil; 2n+1 is object n, which follows; 2n+2 is object n again
	kindInterface                  // 0 is nil; index of a type + 1, value
	kindError                      // see errorNil
	kindTensor                     // index of a view + 1; 0 is nil
	kindSparse                     // as a pointer; indices, values, shape
	kindOwn                        // length as 4 bytes, bytes that only the application knows
	kindBinary                     // length, bytes
)

// schema is a type as it is on the wire. Types that refer to themselves make it
// a graph.
type schema struct {
	kind   kind
	name   string // of a struct for people, of kindOwn to be compared
	n      int    // elements of an array
	key    *schema
	elem   *schema
	fields []schemaField

	// width is the fewest bytes that a value takes. Only values that are always
	// the same have 0.
	width int

	// height is how deep structs and arrays are nested by value.
	height int

	// filled has the types of those fields of a struct that take bytes.
	filled []*schema

	// core is what a value is skipped as. A struct of which one field takes bytes is no
	// more than that field, and an array of one element no more than that: so what is
	// skipped takes no more steps than it has bytes, however its type is nested.
	core *schema
}

type schemaField struct {
	name string
	typ  *schema
}

// leafSchema is the schema of a type without parts.
func leafSchema(k kind, name string) *schema {
	s := &schema{kind: k, name: name}
	s.measure()
	return s
}

// widths has the width of the kinds of which all values have the same.
var widths = [...]int{
	kindBool: 1, kindByte: 1, kindInt: 1, kindUint: 1,
	kindFloat32: 4, kindFloat64: 8, kindComplex64: 8, kindComplex128: 16,
	kindString: 1, kindBytes: 1, kindTime: 3, kindSlice: 1, kindMap: 1, kindPointer: 1,
	kindInterface: 1, kindError: 1, kindTensor: 1, kindSparse: 1, kindOwn: 4, kindBinary: 1,
}

// measure sets width, height and core from those of what is nested by value, which
// must be known.
func (s *schema) measure() {
	s.core = s
	switch s.kind {
	case kindArray:
		s.width, s.height = times(s.n, s.elem.width), s.elem.height+1
		if s.n == 1 {
			s.core = s.elem.core
		}
	case kindStruct:
		s.measureFields()
	default:
		s.width = widths[s.kind]
	}
}

func (s *schema) measureFields() {
	s.filled = make([]*schema, 0, len(s.fields))
	for _, f := range s.fields {
		s.width = plus(s.width, f.typ.width)
		s.height = max(s.height, f.typ.height)
		if f.typ.width > 0 {
			s.filled = append(s.filled, f.typ)
		}
	}
	s.height++
	if len(s.filled) == 1 {
		s.core = s.filled[0].core
	}
}

// plus and times are sums and products of sizes that stop at what no message
// can have.
func plus(a, b int) int {
	if b > math.MaxInt32-a {
		return math.MaxInt32
	}
	return a + b
}

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

// String is the type in the words of Go, as far as it is known. It ends because
// a type cannot refer to itself without a struct, which has a name.
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
	case kindStruct, kindOwn:
		return s.name
	default:
		return kindNames[s.kind]
	}
}

// schemaWriter writes a schema depth first. A struct is written where it comes
// for the first time, and is a number behind that.
type schemaWriter struct {
	dst     []byte
	structs map[*schema]int
}

func (w *schemaWriter) write(s *schema) {
	if place, ok := w.structs[s]; ok {
		w.dst = binary.AppendUvarint(append(w.dst, byte(kindBack)), uint64(place))
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
	case kindOwn:
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

// written is a schema as it travels, and its hash: FNV-1a of 64 bits.
func (s *schema) written() (text []byte, hash uint64) {
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
