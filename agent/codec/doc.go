// Package codec turns Go values into what a message of a pipe carries, and back:
// bytes, and the memory of the tensors found anywhere inside, which travels as
// tensors of the pipe do and is not copied.
//
//	e := codec.NewEncoder(registry, codec.Limits{})
//	e.Reset(nil)
//	err := e.Encode(&args)
//	data, tensors, err := e.Finish()
//
//	d := codec.NewDecoder(registry, codec.Limits{})
//	err = d.Reset(data)
//	err = d.Supply(storages) // one for each of d.Parts()
//	err = d.Decode(&args)
//	err = d.Finish()
//
// A message may have several values. Each is decoded to a type of the same
// make; a value that was encoded from an interface says by its registered name
// what it is.
//
// # What travels
//
// Numbers, bool, string, complex numbers, slices, arrays, maps, structs,
// pointers, time.Time (without the name of its zone), errors,
// [tensor.Tensor] and [tensor.Sparse] by pointer, and interfaces that hold
// registered types. Nil and empty slices and maps are told apart.
//
// Fields that are not exported, channels, functions, uintptr and unsafe.Pointer
// are refused with the path of the field, before anything of the value is
// encoded. A field is left out by the tag `tensorpipe:"-"`, and renamed by
// `tensorpipe:"name"`. A struct has at most 1024 fields that travel.
//
// A type can be encoded in ways of its own. The first that applies is used:
// functions registered with [Hook]; methods ([Appender] and [Parser]);
// encoding.BinaryMarshaler with its counterpart. Beware that a struct has the
// methods of what is embedded in it.
//
// # Identity
//
// Pointers of one message that point to the same value do so at the other end,
// whether they lie in fields or in interfaces, if they are of the same type; a
// pointer to a field of a struct that travels too becomes a value of its own.
// Slices, maps and values in interfaces are copies. A value that contains itself
// is refused with ErrCycle.
//
// Tensors that share a storage still do, views keep their strides, and the same
// *tensor.Tensor is the same one at the other end. The memory travels once, and
// no more than the part from the first to the last byte that the views use,
// begun at a multiple of 16 bytes. If the views of a storage use less than half
// of that part, those that have no memory in common travel apart. A view alone
// whose elements are less than half of the memory that they are spread over, if that
// is 8 KiB or more, as a column of a large matrix, is copied to be contiguous where the host can do
// that. Everything between the views of a part travels too.
//
// # Errors
//
// An error value keeps its identity where both ends registered it by
// [Registry.RegisterError], and its fields where its type is registered. Others, and
// those that only the sender registered, arrive as a [*RemoteError] with type and
// text, the first with what they wrap too. An error that
// has a method Is arrives as wrapping all registered errors that it claims to be.
//
// # Two versions of a program
//
// A message describes the types of its values. If the description is the one
// that the receiver would send, which a hash tells, decoding does not look at
// it. If not, fields of structs are matched by name: fields that the receiver
// does not have are skipped, those that the sender does not have become zero,
// and their order does not matter. The names of struct types do not matter
// either, nor the sizes of integers as long as the number fits; everything else
// must be the same. A pointer to a value that lay in a skipped field still finds
// it, unless an encoding of the application's own hides it.
//
// # Hostile peers
//
// Whatever bytes come, decoding ends with a value or an error, in time and memory
// that the size of the message and [Limits] bound. Encodings of the
// application's own take the same care; their methods get an error where the
// bytes end.
//
// # Format
//
// Numbers are varints as in encoding/binary, signed ones zigzag, unless it says
// otherwise. A text or bytes stand behind their length. Fixed sizes are little
// endian.
//
//	version   1 byte: 1
//	length    4 bytes: of the values
//	values    each: index in the table of types, then the value
//	types     number, then for each:
//	            name as text ("" for a value that was not in an interface),
//	            1 byte: whether it is a pointer to the type of that name,
//	            8 bytes: FNV-1a of the schema, the schema as text
//	parts     number, then for each: size in bytes, kind of its device as text
//	            ("" for cpu:0), index of its device unless the kind is ""
//	views     number, then for each: 1 byte: dtype as in package tensor,
//	            2*dimensions + (1 if there are strides), part, offset in
//	            elements, shape, strides in elements
//	headers   number, then for each: name as text, data as text
//
// A schema is 1 byte for the kind and what that needs:
//
//	 1 bool        1 byte, 0 or 1
//	 2 byte        1 byte, as an element of an array only
//	 3 int         number, signed
//	 4 uint        number
//	 5 float32     4 bytes
//	 6 float64     8 bytes
//	 7 complex64   8 bytes
//	 8 complex128  16 bytes
//	 9 string      text
//	10 bytes       0 for nil; length + 1, bytes
//	11 time        seconds since 1970, signed; nanoseconds; 0 for UTC, or 1 and
//	               signed seconds east of it
//	12 slice       schema: the element. Value: 0 for nil; length + 1, elements,
//	               which are left out if they take no bytes
//	13 array       schema: length, the element. Value: the elements
//	14 map         schema: key, element. Value: 0 for nil; length + 1, for each
//	               key and element
//	15 struct      schema: name of the type, number of fields, for each name and
//	               schema. Value: the fields
//	16 again       schema: number of a struct that began before. The value is its
//	17 pointer     schema: the element. Value: 0 for nil; 2n+1 and the value, for
//	               object n that was not there yet, counting from 0; 2n+2 for
//	               object n again
//	18 interface   0 for nil; index in the table of types + 1, value
//	19 error       0 for nil; 1, name, text; 2, text, index in the table of types,
//	               value; 3, type as text, text, number of wrapped errors, these
//	               errors
//	20 tensor      0 for nil; index of the view + 1
//	21 sparse      as a pointer, to: indices and values as tensors, number of
//	               dimensions, dimensions
//	22 own         schema: name. Value: 4 bytes of length, bytes
//	23 binary      text
package codec

const (
	version   = 1
	frontSize = 5 // of version and length
)
