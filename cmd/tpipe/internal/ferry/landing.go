package ferry

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"sync/atomic"
)

// landing is a file that is being received.
type landing struct {
	offered
	store *Store
	index int // in the offer
	parts []part
	sum   fileSum
	file  *os.File
	left  atomic.Int64 // pieces still to be written: the head and each tensor
	named bool         // stands under its name
}

// land makes what is to become the file offered: as large, and without contents.
// The disk gives it blocks as they are written.
func (s *Store) land(o offered, head []byte, parts []part) (*landing, error) {
	if err := s.root.MkdirAll(path.Dir(o.Name), 0o777); err != nil {
		return nil, err
	}
	f, err := s.createPart(partOf(o.Name))
	if err != nil {
		return nil, err
	}
	l := &landing{offered: o, store: s, parts: parts, sum: newFileSum(head, len(parts)), file: f}
	l.left.Store(int64(1 + len(parts)))
	if err := f.Truncate(int64(o.Bytes)); err != nil {
		l.abandon()
		return nil, err
	}
	return l, nil
}

// createPart makes a new file, in place of what a killed receiver left. Who
// writes to one holds its lock, which tells such a file from one in use.
func (s *Store) createPart(part string) (*os.File, error) {
	if err := s.removePart(part); err != nil {
		return nil, err
	}
	f, err := s.root.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		err = ErrBusy
	}
	if err != nil {
		return nil, err
	}
	if err := lock(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func (s *Store) removePart(part string) error {
	switch info, err := s.root.Lstat(part); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return s.root.Remove(part)
	}
	f, err := s.root.Open(part)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := lock(f); err != nil {
		return err
	}
	// Its owner may have given it its name meanwhile, and the next one begun.
	opened, err := f.Stat()
	if err != nil {
		return err
	}
	if now, err := s.root.Lstat(part); err != nil || !os.SameFile(now, opened) {
		return ErrBusy
	}
	return s.root.Remove(part)
}

// write puts a piece into its place. Different pieces may be written at once.
// done says that it was the last one.
func (l *landing) write(data []byte, offset int) (done bool, err error) {
	if _, err := l.file.WriteAt(data, int64(offset)); err != nil {
		return false, err
	}
	return l.left.Add(-1) == 0, nil
}

// place gives a complete file its name.
func (l *landing) place() error {
	if err := l.file.Sync(); err != nil {
		return err
	}
	if err := l.store.vacant(l.Name); err != nil { // somebody may have made one
		return err
	}
	root := l.store.root
	if err := root.Rename(partOf(l.Name), l.Name); err != nil {
		return err
	}
	l.named = true
	if err := l.file.Close(); err != nil {
		return err
	}
	for dir := path.Dir(l.Name); ; dir = path.Dir(dir) {
		if err := syncDirectory(root, dir); err != nil || dir == "." {
			return err
		}
	}
}

// syncDirectory makes new names in a directory survive a crash.
func syncDirectory(root *os.Root, dir string) error {
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// abandon removes a file that was not placed.
func (l *landing) abandon() {
	if !l.named { // while the lock is held; the next transfer replaces what stays
		_ = l.store.root.Remove(partOf(l.Name))
	}
	_ = l.file.Close()
}
