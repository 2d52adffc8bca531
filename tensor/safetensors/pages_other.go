//go:build !unix

package safetensors

import (
	"errors"
	"io"
	"os"
)

// pages is the content of an open file, read as needed on systems without mmap. The file must stay
// open.
type pages struct{ file *os.File }

func mapPages(f *os.File, _ int) (pages, error) { return pages{f}, nil }

// read fills dst with the bytes of the file from offset on. The error is ErrShrunk if the file ends
// before dst is full, or that of package os.
func (p pages) read(dst []byte, offset int) error {
	_, err := p.file.ReadAt(dst, int64(offset))
	if errors.Is(err, io.EOF) {
		return ErrShrunk
	}
	return err
}

func (p pages) unmap() error { return nil }
