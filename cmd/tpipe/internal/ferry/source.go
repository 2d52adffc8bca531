package ferry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

// source is an open file to send.
type source struct {
	file  *os.File
	info  os.FileInfo // when it was opened
	head  []byte      // the file up to where the tensors start
	parts []part
}

// part is one tensor: where its bytes are in the file.
type part struct{ begin, bytes int }

// largest is the size of the largest tensor.
func largest(parts []part) int {
	n := 0
	for _, p := range parts {
		n = max(n, p.bytes)
	}
	return n
}

// openSource opens a file and checks all that can be known from its header.
func openSource(path string) (*source, error) {
	// A look before opening: to open a named pipe would wait for a writer.
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, &os.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	s := &source{file: file}
	if err := s.load(); err != nil {
		_ = file.Close() // err says more
		return nil, about(path, err)
	}
	return s, nil
}

func (s *source) load() (err error) {
	if s.info, err = s.file.Stat(); err != nil {
		return err
	}
	var head bytes.Buffer
	size := int(s.info.Size())
	s.parts, err = readHead(io.TeeReader(io.LimitReader(s.file, int64(size)), &head), size)
	s.head = head.Bytes()
	return err
}

// readHead reads the beginning of a file of that size, up to where the tensors
// start, and returns where they are.
func readHead(r io.Reader, size int) ([]part, error) {
	count := &counter{r: r}
	head, err := safetensors.NewReader(count, safetensors.Options{HeaderLimit: maxHeader - 8, ByteLimit: size})
	if err != nil {
		return nil, err
	}
	end := count.bytes
	parts := make([]part, len(head.Infos()))
	for i, info := range head.Infos() { // without holes: that is checked
		parts[i] = part{end, info.ByteSize()}
		end += info.ByteSize()
	}
	if end != size {
		return nil, &safetensors.FormatError{Reason: fmt.Sprintf("the header describes %d bytes, the file has %d", end, size)}
	}
	return parts, nil
}

// counter counts what is read through it.
type counter struct {
	r     io.Reader
	bytes int
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.bytes += n
	return n, err
}

// read fills data with the bytes from offset on.
func (s *source) read(data []byte, offset int) error {
	if _, err := s.file.ReadAt(data, int64(offset)); errors.Is(err, io.EOF) {
		return ErrChanged
	} else if err != nil {
		return err
	}
	return nil
}

// check fails if somebody has written to the file since it was opened, as far
// as its size and time tell.
func (s *source) check() error {
	now, err := s.file.Stat()
	if err == nil && (now.Size() != s.info.Size() || !now.ModTime().Equal(s.info.ModTime())) {
		err = ErrChanged
	}
	return err
}

func (s *source) close() { _ = s.file.Close() } // it was only read
