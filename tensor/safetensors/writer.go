package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// entry is a tensor to write, with its name and its index in formats.
type entry struct {
	name   string
	tensor *tensor.Tensor
	rank   int // index in formats
}

// Encode writes tensors and metadata, which may be nil, to w as one file. Equal input gives equal
// output. Tensors that are not contiguous are copied first, one at a time. Encode keeps no tensor
// after it returns.
//
// The error is a *DTypeError for C128, which the format lacks, a *NameError for a nil tensor or a
// name or metadata that the format does not allow, or a *LimitError for a header that other
// implementations would reject. In these cases nothing has been written. The error may also be one
// of package tensor, such as for memory that was released or is not on the host, or that of w; then
// a part may have been written.
func Encode(w io.Writer, tensors map[string]*tensor.Tensor, metadata map[string]string) error {
	entries, err := sortEntries(tensors)
	if err != nil {
		return err
	}
	head, err := encodeHeader(entries, metadata)
	if err != nil {
		return err
	}
	if _, err := w.Write(head); err != nil {
		return err
	}
	for _, e := range entries {
		if err := writeElements(w, e.tensor); err != nil {
			return err
		}
	}
	return nil
}

// sortEntries returns the tensors in the order of the file: first those of the dtype with the
// largest elements, so that all are aligned, and by name among those of one dtype. The error is a
// *NameError for a nil tensor or a reserved name, or a *DTypeError for a dtype that the format
// lacks.
func sortEntries(tensors map[string]*tensor.Tensor) ([]entry, error) {
	entries := make([]entry, 0, len(tensors))
	for name, t := range tensors {
		if t == nil {
			return nil, &NameError{Name: name, Reason: "has no tensor"}
		}
		rank := slices.IndexFunc(formats[:], func(f format) bool { return f.dtype.Valid() && f.dtype == t.DType() })
		if rank < 0 {
			return nil, &DTypeError{Tensor: name, DType: t.DType().String(), Reason: "is not part of the format"}
		}
		if name == metadataKey {
			return nil, &NameError{Name: name, Reason: "cannot name a tensor"}
		}
		entries = append(entries, entry{name, t, rank})
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(a.name, b.name))
	})
	return entries, nil
}

// encodeHeader returns the start of a file with the given entries and metadata: the length of the
// header and the header, together padded to a multiple of 8 bytes. The error is a *NameError if a
// name or metadata is not UTF-8, or a *LimitError if the header is larger than other
// implementations read.
func encodeHeader(entries []entry, metadata map[string]string) ([]byte, error) {
	out := append(make([]byte, 8, 256), '{')
	var err error
	if len(metadata) > 0 {
		if out, err = appendMetadata(out, metadata); err != nil {
			return nil, err
		}
	}
	offset := 0
	for i, e := range entries {
		if i > 0 || len(metadata) > 0 {
			out = append(out, ',')
		}
		if out, err = appendEntry(out, e, offset); err != nil {
			return nil, err
		}
		offset += e.tensor.ByteSize()
	}
	out = append(out, '}')
	for len(out)%8 != 0 {
		out = append(out, ' ')
	}
	size := uint64(len(out) - 8)
	binary.LittleEndian.PutUint64(out, size)
	return out, within("bytes of header", size, maxHeader)
}

// appendMetadata appends the metadata, as a JSON key and value, to out and returns the extended
// slice. The error is a *NameError if a string in it is not UTF-8.
func appendMetadata(out []byte, metadata map[string]string) ([]byte, error) {
	out = append(out, `"`+metadataKey+`":{`...)
	var err error
	for i, key := range slices.Sorted(maps.Keys(metadata)) {
		if i > 0 {
			out = append(out, ',')
		}
		if out, err = appendString(out, key); err != nil {
			return nil, err
		}
		if out, err = appendString(append(out, ':'), metadata[key]); err != nil {
			return nil, err
		}
	}
	return append(out, '}'), nil
}

// appendEntry appends the name and the description of the tensor in e, as a JSON key and value, to
// out and returns the extended slice. offset is where the data of the tensor begins, in bytes after
// the header. The error is a *NameError if the name is not UTF-8.
func appendEntry(out []byte, e entry, offset int) ([]byte, error) {
	out, err := appendString(out, e.name)
	if err != nil {
		return nil, err
	}
	out = append(out, `:{"dtype":"`+formats[e.rank].name+`","shape":`...)
	out = appendInts(out, e.tensor.Shape()...)
	out = append(out, `,"data_offsets":`...)
	out = appendInts(out, offset, offset+e.tensor.ByteSize())
	return append(out, '}'), nil
}

// appendInts appends values, as a JSON array, to out and returns the extended slice.
func appendInts(out []byte, values ...int) []byte {
	out = append(out, '[')
	for i, v := range values {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(out, int64(v), 10)
	}
	return append(out, ']')
}

// appendString appends text as a JSON string to out, and returns the extended slice. It uses only
// the necessary escapes, as the reference implementation does. The error is a *NameError if text is
// not UTF-8.
func appendString(out []byte, text string) ([]byte, error) {
	if !utf8.ValidString(text) {
		return nil, &NameError{Name: text, Reason: "is not UTF-8"}
	}
	const hex = "0123456789abcdef"
	out = append(out, '"')
	start := 0
	for i := range len(text) {
		c := text[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		out = append(out, text[start:i]...)
		if letter, ok := shortEscapes[c]; ok {
			out = append(out, '\\', letter)
		} else {
			out = append(out, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		start = i + 1
	}
	out = append(out, text[start:]...)
	return append(out, '"'), nil
}

// shortEscapes maps characters to the letters of their escapes.
var shortEscapes = map[byte]byte{'"': '"', '\\': '\\', '\b': 'b', '\f': 'f', '\n': 'n', '\r': 'r', '\t': 't'}

// writeElements writes the bytes of t's elements to w in row-major order. If t is not contiguous it
// writes those of a contiguous copy. The error is tensor.ErrReleased after Release, a
// *tensor.DeviceError if the memory is not on the host, a *tensor.SizeError if the copy is
// impossibly large, or that of w.
func writeElements(w io.Writer, t *tensor.Tensor) error {
	t, err := t.Contiguous()
	if err != nil {
		return err
	}
	buf, err := t.Buffer()
	if err != nil {
		return err
	}
	p, ok := buf.Contiguous()
	if !ok {
		return &tensor.DeviceError{Device: t.Device()}
	}
	_, err = w.Write(p)
	runtime.KeepAlive(t)
	return err
}

// WriteFile writes tensors and metadata to a file, as Encode does. It replaces the file at path
// atomically, after the new content is complete and on disk, so that the file is never incomplete.
// The error is that of Encode or of package os; the old file then usually stays. A process that is
// killed may leave a file whose name is path followed by a dot, a hexadecimal number and ".tmp".
func WriteFile(path string, tensors map[string]*tensor.Tensor, metadata map[string]string) error {
	temporary := fmt.Sprintf("%s.%016x.tmp", path, rand.Uint64())
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	if err = Encode(f, tensors, metadata); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return syncDirectory(filepath.Dir(path))
}

// syncDirectory blocks until changed names in the directory at path are on disk, so that a renamed
// file survives a crash of the machine. The error is that of package os.
func syncDirectory(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
