// Package safetensors reads and writes tensors in the safetensors format.
//
// A file consists of the length of a header (8 bytes, little-endian), the header, and the elements
// of all tensors without gaps:
//
//	{"__metadata__":{"by":"me"},"weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}
//
// Offsets count from the end of the header. The header may be padded with spaces after the closing
// brace.
//
// # Reading
//
// [Open] maps a file; [File.Tensor] copies one tensor out of it. [NewReader] reads tensors from a
// stream as they arrive; [Decode] and [ReadFile] read all of them at once.
//
// Reading does not trust the file: tensors must cover the data without overlap or gap, in exactly
// the bytes that their dtype and shape require; names are unique; numbers are plain integers;
// unknown keys are rejected. Memory is allocated as bytes arrive, not as a header claims, and
// [Options] has limits. A file that shrinks while it is mapped causes an error, not a crash.
//
// The format has dtypes that package tensor lacks, such as U32 and F8_E4M3. Reading such a tensor
// fails with a [*DTypeError]; the other tensors of the file can be read.
//
// # Writing
//
// [Encode] and [WriteFile] order tensors as the reference implementation does, by decreasing
// alignment and then by name, so that equal tensors give equal files and elements are aligned.
package safetensors
