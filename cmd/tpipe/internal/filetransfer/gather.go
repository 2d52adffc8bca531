package filetransfer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/pipe"
	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

// FileList is a list of files to send, which Gather returns.
type FileList struct {
	Bytes   int // of all files
	Tensors int
	Skipped int // files in folders that are not *.safetensors

	// Compression is the codec requested for each tensor. The caller may set it.
	Compression pipe.Compression

	items []item
}

// item is one file: its local path and its name at the receiver.
type item struct {
	path, name string
	bytes      int
	tensors    int
	largest    int // bytes of a tensor
}

// Len returns the number of files.
func (c *FileList) Len() int { return len(c.items) }

// Largest returns the size of the largest tensor in bytes.
func (c *FileList) Largest() int {
	largest := 0
	for _, it := range c.items {
		largest = max(largest, it.largest)
	}
	return largest
}

// Gather returns the files to send. Each path is a file, or a folder of which all *.safetensors files
// at any depth are sent. A file is named by the last element of its path, the files of a folder by the
// folder's name and their path below it; the folder "." and folders that end in "/." add no name. All
// headers are read and checked.
//
// A path may be a symbolic link. A link to a file within a folder is followed if follow is set and is
// an error otherwise; a link to a folder within a folder is always an error. The error may also be a
// *NameError, or one of package safetensors or os.
func Gather(paths []string, follow bool) (*FileList, error) {
	c := &FileList{}
	for _, p := range paths {
		info, err := os.Stat(p)
		switch {
		case err != nil:
		case info.IsDir():
			err = c.addFolder(p, follow)
		case !strings.HasSuffix(p, Suffix):
			err = withName(p, errors.New("is no *"+Suffix))
		default:
			err = c.addFile(p, filepath.Base(p))
		}
		if err != nil {
			return nil, err
		}
	}
	if len(c.items) == 0 {
		return nil, fmt.Errorf("no *%s in %s", Suffix, strings.Join(paths, ", "))
	}
	names := make([]string, len(c.items))
	for i, it := range c.items {
		names[i] = it.name
	}
	return c, checkNames(names)
}

// addFolder adds the files of a folder, as Gather describes. It counts the other files in Skipped. The
// error is that of addFile or of package os, or reports a symbolic link that is not allowed.
func (c *FileList) addFolder(folder string, follow bool) error {
	prefix, err := folderName(folder)
	if err != nil {
		return err
	}
	// With the separator WalkDir follows a link to a folder.
	root := filepath.Clean(folder) + string(filepath.Separator)
	return filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if link := d.Type()&fs.ModeSymlink != 0; link {
			if err := checkLink(p, follow); err != nil {
				return err
			}
		}
		if !strings.HasSuffix(p, Suffix) {
			c.Skipped++
			return nil
		}
		inside, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		return c.addFile(p, path.Join(prefix, filepath.ToSlash(inside)))
	})
}

// folderName returns the prefix for the names of the files in a folder: its last element, or "" for
// ".", "/." and the root.
func folderName(folder string) (string, error) {
	if folder == "." || strings.HasSuffix(filepath.ToSlash(folder), "/.") {
		return "", nil
	}
	abs, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	if base := filepath.Base(abs); base != string(filepath.Separator) {
		return base, nil
	}
	return "", nil
}

// checkLink returns an error unless the symbolic link p, found within a folder, is allowed: a link to a
// file if follow is set, or a link that is not *.safetensors and does not lead to a folder.
func checkLink(p string, follow bool) error {
	target, err := os.Stat(p)
	switch {
	case err == nil && target.IsDir():
		return withName(p, errors.New("is a symbolic link to a folder; name it on the command line to send the folder"))
	case !strings.HasSuffix(p, Suffix):
		return nil
	case err != nil:
		return err
	case !follow:
		return withName(p, errors.New("is a symbolic link; -follow sends its target"))
	}
	return nil
}

// addFile checks the header of the file p and adds it under that name. The error is a *NameError, that
// of openSource, or reports that the list would have too many files or bytes.
func (c *FileList) addFile(p, name string) error {
	if len(c.items) == maxFiles {
		return fmt.Errorf("more than %d files; send them in several transfers", maxFiles)
	}
	if err := checkName(name); err != nil {
		return err
	}
	s, err := openSource(p)
	if err != nil {
		return err
	}
	defer s.file.Close()
	bytes := int(s.info.Size())
	if bytes > math.MaxInt-c.Bytes {
		return errors.New("the total size of the files overflows")
	}
	c.items = append(c.items, item{p, name, bytes, len(s.parts), largest(s.parts)})
	c.Bytes += bytes
	c.Tensors += len(s.parts)
	return nil
}

// source is an open file that is being sent. The caller of openSource must close file.
type source struct {
	file  *os.File
	info  os.FileInfo // at the time of opening
	head  []byte      // the bytes before the tensors
	parts []part
}

// part is the position of one tensor in a file, in bytes.
type part struct{ begin, bytes int }

// largest returns the size of the largest tensor in bytes.
func largest(parts []part) int {
	n := 0
	for _, p := range parts {
		n = max(n, p.bytes)
	}
	return n
}

// openSource opens a regular file and reads and checks its header. The caller must close the source's
// file. The error is one of package os or safetensors.
func openSource(path string) (*source, error) {
	// Check before opening: opening a named pipe would block until it has a writer.
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
		_ = file.Close() // err is the cause
		return nil, withName(path, err)
	}
	return s, nil
}

// load reads the header of the file, checks it, and sets the other fields of s. The error is one of
// package os or safetensors.
func (s *source) load() (err error) {
	if s.info, err = s.file.Stat(); err != nil {
		return err
	}
	var head bytes.Buffer
	size := int(s.info.Size())
	s.parts, err = readHead(io.TeeReader(s.file, &head), size)
	s.head = head.Bytes()
	return err
}

// readHead reads the header of a file of size bytes from r, and nothing after it, and returns the
// positions of the tensors in the file. The error is one of package safetensors, or that of r.
func readHead(r io.Reader, size int) ([]part, error) {
	limited := &io.LimitedReader{R: r, N: int64(size)}
	head, err := safetensors.NewReader(limited, safetensors.Options{HeaderLimit: maxHeader - 8, ByteLimit: size})
	if err != nil {
		return nil, err
	}
	end := size - int(limited.N)
	parts := make([]part, len(head.Infos()))
	for i, info := range head.Infos() { // NewReader has checked that there are no gaps
		parts[i] = part{end, info.ByteSize()}
		end += info.ByteSize()
	}
	if end != size {
		return nil, &safetensors.FormatError{Reason: fmt.Sprintf("the header describes %d bytes, the file has %d", end, size)}
	}
	return parts, nil
}

// read fills data with the bytes of the file from offset on. The error is ErrChanged if the file has
// become too short, or one of package os.
func (s *source) read(data []byte, offset int) error {
	if _, err := s.file.ReadAt(data, int64(offset)); errors.Is(err, io.EOF) {
		return ErrChanged
	} else if err != nil {
		return err
	}
	return nil
}

// check returns ErrChanged if the size or the modification time of the file has changed since it was
// opened. Another error is one of package os.
func (s *source) check() error {
	now, err := s.file.Stat()
	if err == nil && (now.Size() != s.info.Size() || !now.ModTime().Equal(s.info.ModTime())) {
		err = ErrChanged
	}
	return err
}
