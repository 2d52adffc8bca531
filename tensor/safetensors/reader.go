package safetensors

import (
	"errors"
	"io"
	"maps"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Reader reads tensors from a stream, in the order of their data. It must be used by one goroutine
// at a time.
type Reader struct {
	r       io.Reader
	options Options
	header  *header
	next    int
	broken  error
}

// NewReader reads the header from r and returns a Reader of the tensors that follow. The Reader
// keeps r. NewReader reads no byte of r after the header.
//
// The error is a *FormatError if the header does not follow the format, a *DTypeError for a dtype
// that the format does not have, a *LimitError if a limit in options is exceeded, or that of r.
func NewReader(r io.Reader, options Options) (*Reader, error) {
	options = options.withDefaults()
	h, _, err := readHeader(r, options)
	if err != nil {
		return nil, err
	}
	return &Reader{r: r, options: options, header: h}, nil
}

// Infos returns the descriptions of all tensors, in the order of their data in the file. The slice
// is r's own, which the caller must not change.
func (r *Reader) Infos() []Info { return r.header.infos }

// Metadata returns a copy of the file's metadata, which is nil if the file has none.
func (r *Reader) Metadata() map[string]string { return maps.Clone(r.header.metadata) }

// Next reads the next tensor and returns it with its description. The tensor is in memory from
// Options.Allocator and belongs to the caller. After the last tensor Next checks that the stream
// ends, which may block, and returns io.EOF.
//
// A *DTypeError means that package tensor lacks the dtype of a tensor: Next has skipped that tensor
// and returns its description, and the next call reads the tensor after it. Any other error is
// final, and later calls return it again: a *FormatError if the stream ends early or continues
// after the last tensor, the error of the stream or of the Allocator, or one of package tensor if
// the memory of the Allocator cannot be written. With an error the returned tensor is nil, and
// unless the error is a *DTypeError the Info has no meaning.
func (r *Reader) Next() (Info, *tensor.Tensor, error) {
	if r.broken != nil {
		return Info{}, nil, r.broken
	}
	info, t, err := r.advance()
	if _, skipped := errors.AsType[*DTypeError](err); err != nil && !skipped {
		r.broken = err
	}
	return info, t, err
}

// advance reads the next tensor and returns what Next describes. Unlike Next it does not remember
// errors: it reads on even if an earlier call has failed.
func (r *Reader) advance() (Info, *tensor.Tensor, error) {
	if r.next == len(r.header.infos) {
		var extra [1]byte
		_, err := io.ReadFull(r.r, extra[:])
		if err == nil {
			err = &FormatError{Reason: "there are bytes after the last tensor"}
		}
		return Info{}, nil, err
	}
	info := r.header.infos[r.next]
	r.next++
	dtype, unsupported := info.Type()
	if unsupported != nil {
		if _, err := io.CopyN(io.Discard, r.r, int64(info.ByteSize())); err != nil {
			return info, nil, truncated("the data", err)
		}
		return info, nil, unsupported
	}
	s, err := r.fill(info.ByteSize())
	if err != nil {
		return info, nil, err
	}
	t, err := tensor.FromStorage(s, dtype, info.Shape...)
	return info, t, err
}

// initialAlloc is the maximum number of bytes that are allocated before any data of a tensor has
// arrived.
const initialAlloc = 1 << 20

// fill reads the next size bytes of the stream and returns them in a new storage from
// Options.Allocator, which belongs to the caller. It allocates more memory only as bytes arrive,
// since a header may claim any size. The error is a *FormatError if the stream ends early, that of
// the stream or of the Allocator, or one of package tensor.
func (r *Reader) fill(size int) (*tensor.Storage, error) {
	s, err := r.options.Allocator.Alloc(min(size, initialAlloc))
	if err != nil {
		return nil, err
	}
	for have := 0; ; {
		p, err := s.Bytes()
		if err == nil {
			_, err = io.ReadFull(r.r, p[have:])
			err = truncated("the data", err)
			runtime.KeepAlive(s)
		}
		if err != nil {
			s.Release()
			return nil, err
		}
		if have = s.Len(); have == size {
			return s, nil
		}
		if s, err = r.grow(s, size); err != nil {
			return nil, err
		}
	}
}

// grow returns a new storage that begins with the bytes of s. The new storage is four times as
// large as s, but has at most size bytes. grow releases s, also if it fails. The error is that of
// the Allocator or of package tensor.
func (r *Reader) grow(s *tensor.Storage, size int) (*tensor.Storage, error) {
	defer s.Release()
	bigger, err := r.options.Allocator.Alloc(s.Len() + min(size-s.Len(), 3*s.Len()))
	if err != nil {
		return nil, err
	}
	from, err := s.Bytes()
	if err != nil {
		return nil, err
	}
	to, err := bigger.Bytes()
	if err != nil {
		bigger.Release()
		return nil, err
	}
	copy(to, from)
	return bigger, nil
}

// Decode reads all tensors and the metadata of the stream r, which must end with the file. It
// returns the tensors by name, in memory from options.Allocator, and the metadata, which is nil if
// the file has none. If one tensor cannot be read, Decode returns only an error, which is one of
// those of NewReader and Next. With NewReader a caller can skip tensors of an unsupported dtype.
func Decode(r io.Reader, options Options) (map[string]*tensor.Tensor, map[string]string, error) {
	reader, err := NewReader(r, options)
	if err != nil {
		return nil, nil, err
	}
	tensors := map[string]*tensor.Tensor{}
	for {
		info, t, err := reader.Next()
		if err == io.EOF {
			return tensors, reader.Metadata(), nil
		}
		if err != nil {
			return nil, nil, err
		}
		tensors[info.Name] = t
	}
}
