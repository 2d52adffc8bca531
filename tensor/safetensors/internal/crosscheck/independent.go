// Command crosscheck writes the files in testdata/independent with another implementation of the
// format, github.com/maruel/safetensors. Its tests read with that implementation the files that
// this one writes.
//
// It is a separate module, so that users of this module do not download the other implementation.
// In this folder run:
//
//	go run . ../../testdata/independent
//	go test ./...
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/maruel/safetensors"
)

// pattern returns size bytes of test data, in new memory, for a tensor with the given name and
// dtype. They depend on the length of the name, so that tensors differ; for bools they are 0 and 1.
func pattern(name string, dtype safetensors.DType, size int) []byte {
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(31*i + len(name))
		if dtype == safetensors.BOOL {
			p[i] &= 1
		}
	}
	return p
}

// sample returns a tensor with the given name, dtype and shape, whose data is that of pattern. It
// copies shape.
func sample(name string, dtype safetensors.DType, shape ...uint64) safetensors.Tensor {
	size := dtype.WordSize()
	for _, dim := range shape {
		size *= dim
	}
	// The other writer encodes the missing shape of a scalar as null; the format requires [].
	shape = append([]uint64{}, shape...)
	return safetensors.Tensor{Name: name, DType: dtype, Shape: shape, Data: pattern(name, dtype, int(size))}
}

// files returns the files that the program writes, by file name without extension, with their
// tensors and metadata.
func files() map[string]safetensors.File {
	return map[string]safetensors.File{
		"dtypes": {Tensors: []safetensors.Tensor{
			sample("bool", safetensors.BOOL, 2, 3), sample("u8", safetensors.U8, 3, 2), sample("i8", safetensors.I8, 5),
			sample("i16", safetensors.I16, 2, 2), sample("i32", safetensors.I32, 1, 3), sample("i64", safetensors.I64, 2),
			sample("f16", safetensors.F16, 4, 1), sample("bf16", safetensors.BF16, 7), sample("f32", safetensors.F32, 3, 3),
			sample("f64", safetensors.F64, 2, 1, 2),
		}},
		"shapes": {Tensors: []safetensors.Tensor{
			sample("scalar", safetensors.F32), sample("empty", safetensors.F64, 0), sample("hollow", safetensors.I16, 3, 0, 2),
			sample("deep", safetensors.U8, 1, 1, 2, 1, 1, 3, 1), sample("", safetensors.U8, 1), sample("\"\\\n<&>\u2028é😀", safetensors.I8, 2),
		}},
		"metadata": {
			Tensors:  []safetensors.Tensor{sample("x", safetensors.F32, 2)},
			Metadata: map[string]string{"format": "pt", "": "empty key", "text": "\"quotes\", \\, <tags> & \u2028 😀\n"},
		},
		"unsupported": {Tensors: []safetensors.Tensor{
			sample("u16", safetensors.U16, 3), sample("first", safetensors.F32, 1), sample("u32", safetensors.U32, 3), sample("u64", safetensors.U64, 3),
			sample("f8_e5m2", safetensors.F8_E5M2, 3), sample("f8_e4m3", safetensors.F8_E4M3, 2), sample("last", safetensors.I8, 4),
		}},
	}
}

func write(folder string) error {
	for name, file := range files() {
		var out bytes.Buffer
		if err := file.Serialize(&out); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(folder, name+".safetensors"), out.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run . FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "crosscheck:", err)
		os.Exit(1)
	}
}
