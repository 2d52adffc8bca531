package safetensors

import (
	"errors"
	"io"
	"maps"
	"runtime"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Reader takes tensors from a stream, in the order of the data. It is used by
// one goroutine at a time.
type Reader struct {
	r       io.Reader
	options Options
	header  *header
	next    int
	broken  error
}

// NewReader reads the header from r. It buffers nothing: behind the last
// tensor, r is where the file ends, if Next has not been called again.
//
// The error is a *FormatError, a *DTypeError for a dtype that the format does
// not have, a *LimitError, or that of r.
func NewReader(r io.Reader, options Options) (*Reader, error) {
	options = options.withDefaults()
	h, _, err := readHeader(r, options)
	if err != nil {
		return nil, err
	}
	return &Reader{r: r, options: options, header: h}, nil
}

// Infos describes the tensors in the order of the data. The caller must not
// change what it gets.
func (r *Reader) Infos() []Info { return r.header.infos }

// Metadata is the file's map of strings, nil if it has none.
func (r *Reader) Metadata() map[string]string { return maps.Clone(r.header.metadata) }

// Next reads the next tensor. Behind the last one it checks that the stream
// ends there, which may block, and returns io.EOF.
//
// A *DTypeError is about this tensor only: it has been skipped, and the next
// call goes on behind it. After any other error Next returns the same again: a
// *FormatError where the stream ends early or goes on, the error of the
// stream, or that of the Allocator.
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

func (r *Reader) advance() (Info, *tensor.Tensor, error) {
	if r.next == len(r.header.infos) {
		return Info{}, nil, r.finish()
	}
	info := r.header.infos[r.next]
	r.next++
	dtype, unsupported := info.Type()
	if unsupported != nil {
		if _, err := io.CopyN(io.Discard, r.r, int64(info.ByteSize())); err != nil {
			return info, nil, cutShort("the data", err)
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

// finish returns io.EOF if the stream ends here.
func (r *Reader) finish() error {
	var extra [1]byte
	_, err := io.ReadFull(r.r, extra[:])
	if err == nil {
		return &FormatError{Reason: "there are bytes behind the last tensor"}
	}
	return err
}

// firstChunk is the number of bytes that are allocated on the word of a header
// alone.
const firstChunk = 1 << 20

// fill reads size bytes into a storage that grows as they arrive.
func (r *Reader) fill(size int) (*tensor.Storage, error) {
	s, err := r.options.Allocator.Alloc(min(size, firstChunk))
	if err != nil {
		return nil, err
	}
	for have := 0; ; {
		if err := r.readInto(s, have); err != nil {
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

// readInto reads the bytes of s from the given one on.
func (r *Reader) readInto(s *tensor.Storage, from int) error {
	p, err := s.Bytes()
	if err != nil {
		return err
	}
	_, err = io.ReadFull(r.r, p[from:])
	runtime.KeepAlive(s)
	if err != nil {
		return cutShort("the data", err)
	}
	return nil
}

// grow moves what has arrived to a storage four times as large, at most size.
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
		return nil, err
	}
	copy(to, from)
	return bigger, nil
}

// Decode reads all tensors of a stream, which must end with the file, and the
// file's metadata. It returns nothing but an error if one tensor cannot be
// read; NewReader gives the others. The errors are those of NewReader and
// Next.
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
