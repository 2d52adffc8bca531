package safetensors

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// File is an open file, mapped into memory. Its methods may be called from any
// goroutine.
type File struct {
	options Options
	header  *header
	data    int // where the tensors start

	mu     sync.RWMutex // Close waits for readers
	file   *os.File
	pages  pages
	closed bool
}

// Open maps a regular file and reads its header; take other kinds with
// NewReader. The caller closes the File.
//
// The error is a *FormatError, a *DTypeError for a dtype that the format does
// not have, a *LimitError, ErrShrunk, or one of package os.
func Open(path string, options Options) (*File, error) {
	// A look before opening: to open a named pipe would wait for a writer.
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, &os.PathError{Op: "open", Path: path, Err: errors.New("not a regular file; use NewReader")}
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	f := &File{options: options.withDefaults(), file: file}
	if err := f.load(); err != nil {
		_ = file.Close() // err says more
		return nil, err
	}
	return f, nil
}

// load maps the file and reads the header; on an error nothing is mapped.
func (f *File) load() error {
	size, err := f.size()
	if err != nil {
		return err
	}
	if size == 0 {
		return cutShort("the length of the header", io.EOF)
	}
	if f.pages, err = mapPages(f.file, size); err != nil {
		return err
	}
	if err := f.loadHeader(size); err != nil {
		_ = f.pages.unmap() // err says more
		return err
	}
	return nil
}

// loadHeader reads the header of a file of that size.
func (f *File) loadHeader(size int) (err error) {
	f.header, f.data, err = readHeader(&pagesReader{pages: f.pages, end: size}, f.options)
	if err != nil {
		return err
	}
	switch want := f.data + f.header.size; {
	case want > size || want < 0:
		return cutShort("the data", io.EOF)
	case want < size:
		return &FormatError{Reason: fmt.Sprintf("there are %d bytes behind the last tensor", size-want)}
	}
	return nil
}

// size is the number of bytes that the file has now.
func (f *File) size() (int, error) {
	info, err := f.file.Stat()
	if err != nil {
		return 0, err
	}
	return int(info.Size()), nil
}

// Infos describes the tensors in the order of the data. The caller must not
// change what it gets.
func (f *File) Infos() []Info { return f.header.infos }

// Info describes one tensor. The error is a *NotFoundError.
func (f *File) Info(name string) (Info, error) {
	i, ok := f.header.index[name]
	if !ok {
		return Info{}, &NotFoundError{Tensor: name}
	}
	return f.header.infos[i], nil
}

// Metadata is the file's map of strings, nil if it has none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.header.metadata) }

// Tensor copies a tensor out of the file. The error is a *NotFoundError, a
// *DTypeError, ErrShrunk, ErrClosed, or that of the Allocator.
func (f *File) Tensor(name string) (*tensor.Tensor, error) {
	info, err := f.Info(name)
	if err != nil {
		return nil, err
	}
	dtype, err := info.Type()
	if err != nil {
		return nil, err
	}
	s, err := f.options.Allocator.Alloc(info.ByteSize())
	if err != nil {
		return nil, err
	}
	if err := f.read(s, f.data+info.begin); err != nil {
		s.Release()
		return nil, err
	}
	return tensor.FromStorage(s, dtype, info.Shape...)
}

// read fills s with the bytes of the file from offset on.
func (f *File) read(s *tensor.Storage, offset int) error {
	dst, err := s.Bytes()
	if err != nil {
		return err
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.closed {
		return ErrClosed
	}
	if err := f.pages.read(dst, offset); err != nil {
		return err
	}
	runtime.KeepAlive(s)
	return f.checkSize(offset + len(dst))
}

// checkSize fails if the file has fewer bytes by now. What is missing from its
// last page reads as zeros and does not fault.
func (f *File) checkSize(want int) error {
	size, err := f.size()
	if err != nil {
		return err
	}
	if size < want {
		return ErrShrunk
	}
	return nil
}

// Close unmaps the file; tensors taken from it stay. It waits for calls of
// Tensor. Closing again returns ErrClosed.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return ErrClosed
	}
	f.closed = true
	return errors.Join(f.pages.unmap(), f.file.Close())
}

// pagesReader reads mapped bytes front to back.
type pagesReader struct {
	pages   pages
	at, end int
}

func (r *pagesReader) Read(p []byte) (int, error) {
	n := min(len(p), r.end-r.at)
	if n == 0 {
		return 0, io.EOF
	}
	if err := r.pages.read(p[:n], r.at); err != nil {
		return 0, err
	}
	r.at += n
	return n, nil
}

// ReadFile reads all tensors of a file and its metadata. It returns nothing
// but an error if one tensor cannot be read; Open gives the others.
func ReadFile(path string, options Options) (map[string]*tensor.Tensor, map[string]string, error) {
	f, err := Open(path, options)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	tensors := map[string]*tensor.Tensor{}
	for _, info := range f.Infos() {
		if tensors[info.Name], err = f.Tensor(info.Name); err != nil {
			return nil, nil, err
		}
	}
	return tensors, f.Metadata(), nil
}
