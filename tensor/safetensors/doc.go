// Package safetensors reads and writes tensors in the safetensors format.
//
// A file is the length of a header (8 bytes, little-endian), the header, and
// the elements of all tensors one behind the other:
//
//	{"__metadata__":{"by":"me"},"weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}
//
// Offsets count from the end of the header. The header may be padded with
// spaces behind the closing brace.
//
// # Reading
//
// [Open] maps a file; [File.Tensor] copies one tensor out of it. [NewReader]
// takes tensors from a stream as they arrive; [Decode] and [ReadFile] take all
// of them at once.
//
// Nothing in a file is believed: tensors must cover the data without overlap
// or hole, in exactly the bytes that their dtype and shape take; names are
// unique; numbers are plain integers; unknown keys are refused. Memory is
// allocated as bytes arrive, not as a header claims, and [Options] bounds what
// is accepted. A file that shrinks while it is mapped gives an error, not a
// crash.
//
// The format has dtypes that package tensor lacks, such as U32 and F8_E4M3.
// Such a tensor gives a [*DTypeError]; the others of the file can be read.
//
// # Writing
//
// [Encode] and [WriteFile] order tensors as the format's first implementation
// does, by falling alignment and then by name, so that equal tensors make
// equal files and elements lie aligned.
package safetensors
