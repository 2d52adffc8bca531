//go:build unix

package safetensors

import (
	"os"
	"syscall"
)

// pages is the contents of an open file, mapped.
type pages struct{ data []byte }

// mapPages maps the first size bytes of a file, at least one.
func mapPages(f *os.File, size int) (pages, error) {
	data, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return pages{}, &os.PathError{Op: "mmap", Path: f.Name(), Err: err}
	}
	return pages{data}, nil
}

// read copies the bytes from offset on, which lie within the mapping.
func (p pages) read(dst []byte, offset int) error {
	return copyMapped(dst, p.data[offset:offset+len(dst)])
}

func (p pages) unmap() error { return syscall.Munmap(p.data) }
