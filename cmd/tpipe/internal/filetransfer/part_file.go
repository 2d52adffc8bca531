package filetransfer

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"sync/atomic"
)

// partFile is a file that is being received, until it has its final name or is abandoned.
type partFile struct {
	fileOffer
	store *Store
	index int // in the offer
	parts []part
	sum   fileSum
	file  *os.File
	left  atomic.Int64 // parts not written yet: the header and each tensor
	named bool         // has its final name
}

// newPartFile creates and locks the part file of an offered file, with its full size, for which no
// disk blocks are allocated yet. head are the bytes before the tensors, and parts the positions of
// the tensors. The caller must call place or abandon. The error is ErrBusy or one of package os.
func (s *Store) newPartFile(o fileOffer, head []byte, parts []part) (*partFile, error) {
	if err := s.root.MkdirAll(path.Dir(o.Name), 0o777); err != nil {
		return nil, err
	}
	f, err := s.createPart(partOf(o.Name))
	if err != nil {
		return nil, err
	}
	p := &partFile{fileOffer: o, store: s, parts: parts, sum: newFileSum(head, len(parts)), file: f}
	p.left.Store(int64(1 + len(parts)))
	if err := f.Truncate(int64(o.Bytes)); err != nil {
		p.abandon()
		return nil, err
	}
	return p, nil
}

// createPart creates and locks the part file with that name. It replaces a part file that is not
// locked, which a killed receiver has left. The error is ErrBusy if another transfer holds the lock, or
// one of package os. Closing the file releases the lock.
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

// removePart removes the part file with that name, if there is one. It returns ErrBusy if another
// transfer holds its lock, or an error of package os.
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
	// Its owner may have renamed it before the lock was taken, and another transfer may
	// have created a new one.
	opened, err := f.Stat()
	if err != nil {
		return err
	}
	if now, err := s.root.Lstat(part); err != nil || !os.SameFile(now, opened) {
		return ErrBusy
	}
	return s.root.Remove(part)
}

// place flushes the complete file to disk, gives it its final name, closes it, and flushes its
// directories. The error is ErrExists if a file of that name exists and must not be replaced, or one of
// package os. After an error the caller must call abandon.
func (p *partFile) place() error {
	if err := p.file.Sync(); err != nil {
		return err
	}
	if err := p.store.checkFree(p.Name); err != nil { // one may have been created since the offer
		return err
	}
	root := p.store.root
	if err := root.Rename(partOf(p.Name), p.Name); err != nil {
		return err
	}
	p.named = true
	if err := p.file.Close(); err != nil {
		return err
	}
	for dir := path.Dir(p.Name); ; dir = path.Dir(dir) {
		if err := syncDirectory(root, dir); err != nil || dir == "." {
			return err
		}
	}
}

// syncDirectory flushes the directory dir of root to disk, so that new names in it survive a crash.
func syncDirectory(root *os.Root, dir string) error {
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// abandon closes the file and removes it unless it has its final name. It may be called after place has
// failed.
func (p *partFile) abandon() {
	if !p.named { // before Close releases the lock; if it fails the next transfer replaces the file
		_ = p.store.root.Remove(partOf(p.Name))
	}
	_ = p.file.Close()
}
