package filetransfer

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path"
	"slices"
)

// partFile is a file that is being received, until it has its final name or is abandoned. Its bytes
// are written in order, so that its size is the number of bytes that it has.
type partFile struct {
	fileOffer
	store   *Store
	index   int // in the offer
	tensors int
	file    *os.File
	named   bool // has its final name

	received int // bytes of the messages that have arrived
	written  int
	sum      uint32 // CRC32C of the bytes that were written
	found    int    // bytes that existed before the transfer
	flushed  int    // bytes of which the disk has or will soon have a copy
}

// newPartFile creates and locks the part file for the offered file o, and the directories above it.
// It writes head to it, the bytes before the tensors. The caller must call place or abandon, unless
// newPartFile fails. The error is that of checkFree, ErrBusy, or one of package os.
func (s *Store) newPartFile(o fileOffer, head []byte) (*partFile, error) {
	if err := s.checkFree(o.Name); err != nil {
		return nil, err
	}
	if err := s.root.MkdirAll(path.Dir(o.Name), 0o777); err != nil {
		return nil, err
	}
	f, err := s.createPart(partOf(o.Name))
	if err != nil {
		return nil, err
	}
	p := &partFile{fileOffer: o, store: s, file: f}
	if o.Bytes > chunkBytes {
		preallocate(f, o.Bytes) // smaller files are allocated at once
	}
	if err := p.write(head, sumOf(head)); err != nil {
		p.abandon(false)
		return nil, err
	}
	p.received = len(head)
	return p, nil
}

// pieceBytes is the number of bytes that one system call reads from a file or writes to one. Their
// checksum is computed next, while they are in the cache of the processor. The page cache holds the
// bytes of a call in areas of up to that size. Areas from 1 MiB on are often not at hand: see
// docs/decisions/2026-11-24-file-transfer.md.
const pieceBytes = 256 << 10

// write appends data to the part file. If the CRC32C of data is not crc, the error matches
// ErrChecksum. Otherwise it is one of package os. After an error the file may have more than
// p.written bytes.
func (p *partFile) write(data []byte, crc uint32) error {
	var sum uint32
	at := int64(p.written)
	for piece := range slices.Chunk(data, pieceBytes) {
		if _, err := p.file.WriteAt(piece, at); err != nil {
			return err
		}
		sum = crc32.Update(sum, castagnoli, piece)
		at += int64(len(piece))
	}
	if sum != crc {
		return fmt.Errorf("at byte %d: %w: %08x, sent was %08x", p.written, ErrChecksum, sum, crc)
	}
	p.written += len(data)
	p.sum = combineSums(p.sum, crc, len(data))
	return nil
}

// createPart creates the file part, an empty part file, and locks it. It replaces a part file that
// is not locked, which a killed receiver has left. Closing the result releases the lock. The error
// is ErrBusy if another transfer holds the lock or has just created the file, and otherwise one of
// package os.
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

// removePart removes the part file part, and also a link or an empty directory of that name. It
// returns nil if there is none. The error is ErrBusy if another transfer holds the file's lock or
// has just renamed, removed or replaced the file, and otherwise one of package os.
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

// syncDirectory flushes the directory dir below root to disk, so that new names in it survive a
// crash of the machine. The error is one of package os.
func syncDirectory(root *os.Root, dir string) error {
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// abandon closes the part file. Unless it has its final name, abandon removes it, or, if keep is
// true and at least one chunk or all bytes were written, keeps it and frees the disk space after
// its last byte. It returns the number of bytes of the part file that is kept, or 0. It ignores
// errors. It may be called after rename has failed.
func (p *partFile) abandon(keep bool) (kept int) {
	switch {
	case p.named:
	case keep && (p.written >= chunkBytes || p.written == p.Bytes) && p.file.Truncate(int64(p.written)) == nil:
		kept = p.written
	default: // before Close releases the lock; if it fails the next transfer replaces the file
		_ = p.store.root.Remove(partOf(p.Name))
	}
	_ = p.file.Close()
	return kept
}
