package ferry

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// Cargo is a list of files to send.
type Cargo struct {
	Bytes   int // of all files
	Tensors int
	Skipped int // files in folders that are no *.safetensors

	// Compression is asked for with each tensor. The caller may set it.
	Compression pipe.Compression

	items []item
}

// item is one file: where it is here, and what it is called there.
type item struct {
	path, name string
	bytes      int
	tensors    int
	largest    int // bytes of a tensor
}

// Len is the number of files.
func (c *Cargo) Len() int { return len(c.items) }

// Largest is the size of the largest tensor.
func (c *Cargo) Largest() int {
	largest := 0
	for _, it := range c.items {
		largest = max(largest, it.largest)
	}
	return largest
}

// Gather lists what is to be sent: each path is a file, or a folder of which
// all *.safetensors are meant, at any depth. A file arrives under its last
// element, what is in a folder below the folder's; the folder "." and those
// that end in "/." give no name. All headers are read and checked.
//
// A path may be a symbolic link. Links in a folder are an error, unless follow
// says that those to files are to be sent as files; links to folders never are
// followed.
func Gather(paths []string, follow bool) (*Cargo, error) {
	c := &Cargo{}
	for _, p := range paths {
		if err := c.add(p, follow); err != nil {
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

func (c *Cargo) add(p string, follow bool) error {
	info, err := os.Stat(p)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return c.addFolder(p, follow)
	case !strings.HasSuffix(p, Suffix):
		return about(p, errors.New("is no *"+Suffix))
	}
	return c.addFile(p, filepath.Base(p))
}

func (c *Cargo) addFolder(folder string, follow bool) error {
	prefix, err := folderName(folder)
	if err != nil {
		return err
	}
	// The slash makes a link to a folder be that folder.
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

// folderName is what stands before the names of the files in a folder.
func folderName(folder string) (string, error) {
	if folder == "." || strings.HasSuffix(filepath.ToSlash(folder), "/.") {
		return "", nil
	}
	whole, err := filepath.Abs(folder)
	if err != nil {
		return "", err
	}
	if base := filepath.Base(whole); base != string(filepath.Separator) {
		return base, nil
	}
	return "", nil
}

// checkLink fails for a link in a folder that would be left out in silence, or
// followed without being asked.
func checkLink(p string, follow bool) error {
	target, err := os.Stat(p)
	switch {
	case err == nil && target.IsDir():
		return about(p, errors.New("is a symbolic link to a folder; name it on the command line to send that"))
	case !strings.HasSuffix(p, Suffix):
		return nil
	case err != nil:
		return err
	case !follow:
		return about(p, errors.New("is a symbolic link; -follow sends the file that it leads to"))
	}
	return nil
}

func (c *Cargo) addFile(p, name string) error {
	if len(c.items) == maxFiles {
		return fmt.Errorf("more than %d files; send them in several turns", maxFiles)
	}
	if err := checkName(name); err != nil {
		return err
	}
	s, err := openSource(p)
	if err != nil {
		return err
	}
	defer s.close()
	bytes := int(s.info.Size())
	if bytes > math.MaxInt-c.Bytes {
		return errors.New("the files have more bytes together than can be counted")
	}
	c.items = append(c.items, item{p, name, bytes, len(s.parts), largest(s.parts)})
	c.Bytes += bytes
	c.Tensors += len(s.parts)
	return nil
}

// offer describes the cargo to the receiver.
func (c *Cargo) offer() order {
	o := &offer{Version: version}
	for _, it := range c.items {
		o.Files = append(o.Files, offered{it.name, it.bytes, it.largest})
	}
	return order{Offer: o}
}
