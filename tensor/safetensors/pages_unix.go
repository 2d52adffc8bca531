//go:build unix

package safetensors

import (
	"os"
	"syscall"
)

// pages is the mapped content of an open file, until unmap.
type pages struct{ data []byte }

// mapPages maps the first size bytes of f for reading and returns the mapping, which the caller
// must unmap. size must be positive. The mapping stays valid if f is closed. The error is an
// *os.PathError.
func mapPages(f *os.File, size int) (pages, error) {
	data, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return pages{}, &os.PathError{Op: "mmap", Path: f.Name(), Err: err}
	}
	return pages{data}, nil
}

// read copies the bytes of the mapping from offset on to dst, until dst is full. All of them must
// lie within the mapping. The error is ErrShrunk if one of the memory pages cannot be read, as
// after the file has become shorter.
func (p pages) read(dst []byte, offset int) error {
	return copyMapped(dst, p.data[offset:offset+len(dst)])
}

func (p pages) unmap() error { return syscall.Munmap(p.data) }
