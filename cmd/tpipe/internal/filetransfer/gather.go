package filetransfer

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/tensor/safetensors"
)

// FileList is a list of files to send, which Gather returns.
type FileList struct {
	Bytes   int // of all files
	Tensors int
	Skipped int // files in folders that are not *.safetensors

	items []item
}

// item is one file: its local path and its name at the receiver.
type item struct {
	path, name string
	bytes      int
	tensors    int
}

// Len returns the number of files.
func (c *FileList) Len() int { return len(c.items) }

// Gather returns a list of the files to send. Each of paths is a *.safetensors file, or a folder of
// which all *.safetensors files at any depth are listed. Gather opens each file and checks its
// header. The name of a file at the receiver is the last element of its path. For a file in a
// folder it is the folder's name and the path below the folder; "." and folders that end in "/."
// add no name.
//
// A path may be a symbolic link. Within a folder, a link to another folder is an error. A link
// there with the name of a *.safetensors file is followed if follow is true, and otherwise an error
// too.
//
// The error reports a path that is no *.safetensors file, a link that is not allowed, or that there
// are no files or too many. It may also be a *NameError, or one of package safetensors or os.
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

// addFolder adds all *.safetensors files below folder to the list, and counts its other files in
// c.Skipped. It names the files as Gather does. The error reports a symbolic link that is not
// allowed, or is that of addFile or of package os. The list may then have some of the files.
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

// folderName returns the first element of the names of the files in folder: the last element of
// folder's absolute path. It returns "" if folder is ".", ends in "/." or is the root. The error is
// that of filepath.Abs.
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

// checkLink returns nil if Gather may pass the symbolic link p, which is within a folder. It
// returns an error if p leads to a folder, and, if p is named *.safetensors, if follow is false or
// p leads to nothing.
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

// addFile opens the file at the path p, checks its header, and adds it to the list with the given
// name at the receiver. The file is closed again. The error is a *NameError, that of openSource, or
// reports that the list would have too many files or bytes.
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
	c.items = append(c.items, item{p, name, bytes, s.tensors})
	c.Bytes += bytes
	c.Tensors += s.tensors
	return nil
}

// source is an open file that is being sent. The caller of openSource must close file.
type source struct {
	file    *os.File
	info    os.FileInfo // at the time of opening
	head    []byte      // the bytes before the tensors
	tensors int
}

// openSource opens the file at path, which must be a regular file, and reads and checks its header.
// The caller must close the field file of the result. The error is one of package os or
// safetensors.
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

// load reads and checks the header of s.file, and sets the other fields of s. It does not close the
// file, also after an error. The error is one of package os or safetensors.
func (s *source) load() (err error) {
	if s.info, err = s.file.Stat(); err != nil {
		return err
	}
	var head bytes.Buffer
	size := int(s.info.Size())
	s.tensors, err = readHead(io.TeeReader(s.file, &head), size)
	s.head = head.Bytes()
	return err
}

// readHead reads the header of a safetensors file from r, and no byte after it. size is the size of
// the whole file. It returns the number of tensors. The error is one of package safetensors, also
// if the header does not describe exactly size bytes, or that of r.
func readHead(r io.Reader, size int) (tensors int, err error) {
	limited := &io.LimitedReader{R: r, N: int64(size)}
	head, err := safetensors.NewReader(limited, safetensors.Options{HeaderLimit: maxHeader - 8, ByteLimit: size})
	if err != nil {
		return 0, err
	}
	end := size - int(limited.N)
	for _, info := range head.Infos() { // NewReader has checked that there are no gaps
		end += info.ByteSize()
	}
	if end != size {
		return 0, &safetensors.FormatError{Reason: fmt.Sprintf("the header describes %d bytes, the file has %d", end, size)}
	}
	return len(head.Infos()), nil
}

// read fills data with the bytes of the file from offset on, and returns their CRC32C. The error is
// ErrChanged if the file ends before data is full, and otherwise one of package os.
func (s *source) read(data []byte, offset int) (crc uint32, err error) {
	for piece := range slices.Chunk(data, pieceBytes) {
		if _, err := s.file.ReadAt(piece, int64(offset)); errors.Is(err, io.EOF) {
			return 0, ErrChanged
		} else if err != nil {
			return 0, err
		}
		crc = crc32.Update(crc, castagnoli, piece)
		offset += len(piece)
	}
	return crc, nil
}

// check returns nil if the size and the modification time of the file are those that it had when it
// was opened, and ErrChanged if not. Any other error is one of package os.
func (s *source) check() error {
	now, err := s.file.Stat()
	if err == nil && (now.Size() != s.info.Size() || !now.ModTime().Equal(s.info.ModTime())) {
		err = ErrChanged
	}
	return err
}
