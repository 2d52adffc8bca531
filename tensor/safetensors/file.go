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

// File is an open file, mapped into memory where the system supports that. Its methods may be
// called from any goroutine. The caller must call Close.
type File struct {
	options Options
	header  *header
	data    int // offset of the tensors

	mu     sync.RWMutex // Close waits for readers
	file   *os.File
	pages  pages
	closed bool
}

// Open opens the regular file at path, maps it into memory where the system supports that, and
// reads its header. For other files, such as pipes, it fails; use NewReader. The caller must close
// the File. The File keeps options.Allocator for its tensors.
//
// The error is a *FormatError if the file does not follow the format, a *DTypeError for a dtype
// that the format does not have, a *LimitError if a limit in options is exceeded, ErrShrunk if the
// file shrinks while it is read, or one of package os.
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

// load maps the open file f.file and reads its header into f. After an error nothing is mapped. In
// any case f.file stays open, and the caller closes it.
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

// loadHeader reads the header of the mapped file, which has size bytes, and sets f.header and
// f.data. The error is that of readHeader, or a *FormatError unless the data of the last tensor
// ends exactly at size.
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

// size returns the present size of the file in bytes. The error is that of Stat.
func (f *File) size() (int, error) {
	info, err := f.file.Stat()
	if err != nil {
		return 0, err
	}
	return int(info.Size()), nil
}

// Infos returns the descriptions of all tensors, in the order of their data in the file. The slice
// is f's own, which the caller must not change. It stays valid after Close.
func (f *File) Infos() []Info { return f.header.infos }

// Info returns the description of the tensor with the given name. If the file has none it returns a
// zero Info and a *NotFoundError. The Shape in it is f's own, which the caller must not change.
func (f *File) Info(name string) (Info, error) {
	i, ok := f.header.index[name]
	if !ok {
		return Info{}, &NotFoundError{Tensor: name}
	}
	return f.header.infos[i], nil
}

// Metadata returns a copy of the file's metadata, which is nil if the file has none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.header.metadata) }

// Tensor returns a copy, in memory from Options.Allocator, of the tensor with the given name. The
// copy belongs to the caller and stays valid after Close. The error is a *NotFoundError if the file
// has no such tensor, and a *DTypeError if package tensor lacks its dtype. Otherwise it is that of
// the Allocator, ErrClosed after Close, ErrShrunk if the file has become shorter, or one of package
// os or tensor.
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

// read fills the memory of s with the bytes of the file from offset on. The error is ErrClosed
// after Close, ErrShrunk if the file has become shorter, or one of package os or tensor; the
// contents of s are then undefined. It holds f.mu for reading while it copies.
func (f *File) read(s *tensor.Storage, offset int) error {
	dst, err := s.Bytes()
	if err != nil {
		return err
	}
	err = f.readBytes(dst, offset)
	runtime.KeepAlive(s)
	return err
}

// ReadAt fills p with bytes of the tensor with the given name, from offset on, as the file has them. It
// is for memory that is not an Allocator's, such as that of a device, a part at a time. The error is a
// *NotFoundError, a *tensor.IndexError if the tensor has fewer bytes, or one of those of Tensor for the
// file; the contents of p are then undefined.
func (f *File) ReadAt(p []byte, name string, offset int) error {
	info, err := f.Info(name)
	if err != nil {
		return err
	}
	if size := info.ByteSize(); offset < 0 || offset > size || len(p) > size-offset {
		return &tensor.IndexError{What: "byte", Index: offset + len(p), Len: size + 1}
	}
	return f.readBytes(p, f.data+info.begin+offset)
}

// readBytes is read for the memory dst.
func (f *File) readBytes(dst []byte, offset int) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.closed {
		return ErrClosed
	}
	if err := f.pages.read(dst, offset); err != nil {
		return err
	}
	size, err := f.size()
	if err != nil {
		return err
	}
	if size < offset+len(dst) { // bytes missing from the last page read as zeros without a fault
		return ErrShrunk
	}
	return nil
}

// Close unmaps and closes the file, after it has waited for running calls of Tensor. Tensors that
// Tensor has returned are copies and stay valid. The first call returns the errors of unmapping and
// closing, joined; later calls return ErrClosed.
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

// ReadFile returns copies of all tensors of the file at path, by name, and the file's metadata,
// which is nil if it has none. If one tensor cannot be read, ReadFile returns only an error; use
// Open to read the others. The errors are those of Open and File.Tensor.
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

// copyMapped copies mapped, which is memory of a mapped file, to dst of the same length. It returns
// ErrShrunk if an access to mapped faults, as after the file has become shorter; dst may then be
// partly written. Any other panic continues.
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

// convertFault returns ErrShrunk if recovered, a value that recover has returned, is a memory fault
// at an address within mapped. With any other value it panics again.
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
