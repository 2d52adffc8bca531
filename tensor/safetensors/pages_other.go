//go:build !unix

package safetensors

import (
	"errors"
	"io"
	"os"
)

// pages is the contents of an open file, read as needed.
type pages struct{ file *os.File }

func mapPages(f *os.File, _ int) (pages, error) { return pages{f}, nil }

// read copies the bytes from offset on.
func (p pages) read(dst []byte, offset int) error {
	_, err := p.file.ReadAt(dst, int64(offset))
	if errors.Is(err, io.EOF) {
		return ErrShrunk
	}
	return err
}

func (p pages) unmap() error { return nil }
