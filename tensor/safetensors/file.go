package safetensors

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// File is an open file, mapped into memory where the system supports that. Its methods may be called
// from any goroutine. The caller must call Close.
type File struct {
	options Options
	header  *header
	data    int // offset of the tensors

	mu     sync.RWMutex // Close waits for readers
	file   *os.File
	pages  pages
	closed bool
}

// Open maps a regular file and reads its header; use NewReader for other files. The caller must close
// the File.
//
// The error is a *FormatError, a *DTypeError for a dtype that the format does not have, a *LimitError,
// ErrShrunk, or one of package os.
func Open(path string, options Options) (*File, error) {
	// Check before opening: opening a named pipe would block until it has a writer.
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
		_ = file.Close() // err is more specific
		return nil, err
	}
	return f, nil
}

// load maps the open file and reads its header. After an error nothing is mapped; the caller closes the
// file.
func (f *File) load() error {
	size, err := f.size()
	if err != nil {
		return err
	}
	if size == 0 {
		return truncated("the length of the header", io.EOF)
	}
	if f.pages, err = mapPages(f.file, size); err != nil {
		return err
	}
	if err := f.loadHeader(size); err != nil {
		_ = f.pages.unmap() // err is more specific
		return err
	}
	return nil
}

// loadHeader reads the header of the mapped file, which has size bytes, and sets header and data. The
// error is a *FormatError unless the tensors end exactly at size, or that of readHeader.
func (f *File) loadHeader(size int) (err error) {
	f.header, f.data, err = readHeader(&pagesReader{pages: f.pages, end: size}, f.options)
	if err != nil {
		return err
	}
	switch want := f.data + f.header.size; {
	case want > size || want < 0:
		return truncated("the data", io.EOF)
	case want < size:
		return &FormatError{Reason: fmt.Sprintf("there are %d bytes after the last tensor", size-want)}
	}
	return nil
}

// size returns the present size of the file in bytes, or the error of Stat.
func (f *File) size() (int, error) {
	info, err := f.file.Stat()
	if err != nil {
		return 0, err
	}
	return int(info.Size()), nil
}

// Infos returns the descriptions of the tensors in the order of the data. The caller must not change
// the slice.
func (f *File) Infos() []Info { return f.header.infos }

// Info returns the description of the tensor with that name. The error is a *NotFoundError.
func (f *File) Info(name string) (Info, error) {
	i, ok := f.header.index[name]
	if !ok {
		return Info{}, &NotFoundError{Tensor: name}
	}
	return f.header.infos[i], nil
}

// Metadata returns a copy of the file's metadata, nil if it has none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.header.metadata) }

// Tensor returns a copy, in memory from Options.Allocator, of the tensor with that name. The error is a
// *NotFoundError, a *DTypeError if package tensor lacks the dtype, ErrShrunk, ErrClosed, that of the
// Allocator, or one of package os or tensor.
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

// read fills s with the bytes of the file from offset on. The error is ErrClosed, ErrShrunk, or one of
// package os or tensor. The caller must not hold f.mu.
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
	size, err := f.size()
	if err != nil {
		return err
	}
	if size < offset+len(dst) { // bytes missing from the last page read as zeros without a fault
		return ErrShrunk
	}
	return nil
}

// Close unmaps the file; tensors copied from it stay valid. It waits for calls of Tensor. A further
// Close returns ErrClosed.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return ErrClosed
	}
	f.closed = true
	return errors.Join(f.pages.unmap(), f.file.Close())
}

// pagesReader is an io.Reader of the bytes from at to end of a mapped file.
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

// ReadFile returns copies of all tensors of a file by name, and its metadata, nil if it has none. If
// one tensor cannot be read it returns only an error; use Open to read the others. The errors are those
// of Open and File.Tensor.
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

// copyMapped copies mapped memory to dst, which has the same length. It returns ErrShrunk if the mapped
// file has lost a page, where the access faults.
func copyMapped(dst, mapped []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = convertFault(mapped, r)
		}
	}()
	copy(dst, mapped)
	return nil
}

// convertFault returns ErrShrunk if recovered is a memory fault at an address within mapped. It panics
// with any other value of recovered.
func convertFault(mapped []byte, recovered any) error {
	// fault is an error like those of the runtime's panics.
	fault, ok := recovered.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		panic(recovered)
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(mapped)))
	if fault.Addr() < start || fault.Addr() >= start+uintptr(len(mapped)) {
		panic(recovered)
	}
	return ErrShrunk
}
