// Package codec encodes Go values to a message of a pipe, and decodes them. The bytes
// of the message hold the values; the memory of tensors anywhere inside them becomes
// tensors of the pipe and is not copied.
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
// A message may have several values. Each is decoded to a type with the same structure;
// a value that was encoded from an interface carries the registered name of its type.
//
// # What can be encoded
//
// Numbers, bool, string, complex numbers, slices, arrays, maps, structs,
// pointers, time.Time (without the name of its zone), errors,
// [tensor.Tensor] and [tensor.Sparse] by pointer, and interfaces that hold
// registered types. Nil slices and maps stay different from empty ones.
//
// Fields that are not exported, channels, functions, uintptr and unsafe.Pointer are
// rejected with the path of the field. The tag
// `tensorpipe:"-"` omits a field, and `tensorpipe:"name"` renames it. At a field named _,
// which is never encoded, the tag is the name by which messages describe the struct:
// they stay the same, byte for byte, when the Go type is renamed or moves to another
// package. A struct may have at most 1024 fields that are encoded.
//
// A type may have a custom encoding. The first of these is used: functions registered
// with [Hook]; the methods of [Appender] and [Parser]; encoding.BinaryMarshaler with
// encoding.BinaryUnmarshaler. A struct has the methods of its embedded fields too.
//
// # Identity
//
// Pointers of one type within one message that point to the same value do so after
// decoding too, whether they are in fields or in interfaces. A pointer to a field of an
// encoded struct is decoded as a separate value. Slices, maps and values in interfaces
// are copied. A value that contains itself is rejected with ErrCycle.
//
// Tensors that share a storage share one after decoding, views keep their strides, and
// the same *tensor.Tensor is decoded to the same tensor. The memory is sent once: from
// the first to the last byte that the views use, or up to 15 bytes before that if they
// have several dtypes. If the views of a storage use less than half of these bytes,
// views that do not overlap are sent separately. A single view that takes less than half
// of a storage of 8 KiB or more, and has other bytes between its elements, for example a
// column of a matrix, is copied to contiguous memory if the host can read it. Bytes
// between the views of a part are sent too.
//
// # Errors
//
// An error value is decoded to the same value if both ends registered it with
// [Registry.RegisterError], and keeps its fields if its type is registered. Others, and
// those that only the sender registered, are decoded to a [*RemoteError] with type and
// text; unregistered ones keep the errors that they wrap. An error with a method Is
// is decoded to one that wraps all registered errors for which Is returns true.
//
// # Two versions of a program
//
// A message describes the types of its values. If the hash of a description is that of
// the receiver's type, decoding ignores the description. Otherwise struct fields are
// matched by name: fields that the receiver does not have are skipped, fields that the
// sender does not have become zero, and their order does not matter. Names of struct
// types and sizes of integers may differ, as long as each number fits; everything else
// must be the same. A pointer to a value in a skipped field still finds it, unless that
// value is inside a custom encoding.
//
// # Hostile peers
//
// Arbitrary bytes decode to values or to an error, in time and memory bounded by the size
// of the message and by [Limits]. Custom encodings must take the same care; the methods
// of the Decoder return an error at the end of their bytes.
//
// # Format
//
// The section "Values" of docs/wire.md specifies the bytes of a message: version and length;
// the values, without types; a table of their types, with a schema and its hash for each;
// tables of the memory of tensors and of the views of it; and headers.
package codec

const (
	version    = 1
	prefixSize = 5 // of version and length
)
