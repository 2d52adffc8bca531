package filetransfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
)

// maxSums bounds the chunks of one file whose sums a receiver reports, so that the message keeps
// within maxMetadata as base64. What follows them is sent again.
const maxSums = 750_000

// chunksIn returns the number of chunks in the given number of bytes of a file.
func chunksIn(bytes int) int { return (bytes + chunkBytes - 1) / chunkBytes }

// found is what a receiver has of an offered file: the first bytes of its part file, or the file of
// the final name, if that has the size of the offer.
type found struct {
	fileFound
	final bool // has its final name
	info  os.FileInfo
}

// existing returns the description of the regular file with the name and the size of the offered
// file o, or nil if there is none.
func (s *Store) existing(o fileOffer) os.FileInfo {
	info, err := s.root.Lstat(o.Name)
	if err != nil || !info.Mode().IsRegular() || int(info.Size()) != o.Bytes {
		return nil
	}
	return info
}

// existingPart returns the description of the part file for o with which a transfer can resume, or
// nil. A link is not such a file, because writing to it could change another one.
func (s *Store) existingPart(o fileOffer) os.FileInfo {
	info, err := s.root.Lstat(partOf(o.Name))
	if err != nil || !info.Mode().IsRegular() || !soleName(info) {
		return nil
	}
	return info
}

// bytesOnDisk returns how many bytes of the offered file o need no further disk space if the
// transfer resumes.
func (s *Store) bytesOnDisk(o fileOffer) int {
	if s.existing(o) != nil {
		return o.Bytes
	}
	if info := s.existingPart(o); info != nil {
		return min(int(info.Size()), o.Bytes)
	}
	return 0
}

// find returns the first bytes of the offered file o that the store has, with the CRC32C of each
// chunk, which it reads from disk. The result ends before a chunk that cannot be read. It has 0
// bytes if there is nothing to resume with. If find stops because ctx has ended, the result is nil
// and the error is the cause of ctx.
func (s *Store) find(ctx context.Context, o fileOffer) (*found, error) {
	f, name := &found{}, o.Name
	if f.info = s.existing(o); f.info != nil {
		f.final = true
	} else if f.info = s.existingPart(o); f.info != nil {
		name = partOf(o.Name)
	} else {
		return f, nil
	}
	file, err := s.root.Open(name)
	if err != nil {
		return &found{}, nil
	}
	defer file.Close()
	if !f.isSame(file) {
		return &found{}, nil
	}
	end := min(int(f.info.Size()), o.Bytes)
	if end < o.Bytes {
		end -= end % chunkBytes
	}
	end = int(min(int64(end), maxSums*chunkBytes))
	buf := make([]byte, min(end, chunkBytes))
	for f.Bytes < end {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		data := buf[:min(chunkBytes, end-f.Bytes)]
		if _, err := file.ReadAt(data, int64(f.Bytes)); err != nil {
			break
		}
		f.Bytes += len(data)
		f.Sums = binary.LittleEndian.AppendUint32(f.Sums, sumOf(data))
	}
	return f, nil
}

// isSame reports whether file is the file that was found, and was not changed since.
func (f *found) isSame(file *os.File) bool {
	now, err := file.Stat()
	return err == nil && os.SameFile(now, f.info) && now.Size() == f.info.Size() && now.ModTime().Equal(f.info.ModTime())
}

// sum returns the CRC32C of the first n bytes, computed from those of the chunks. n is a multiple
// of chunkBytes or f.Bytes.
func (f *found) sum(n int) uint32 {
	var sum uint32
	for at, k := 0, 0; at < n; k++ {
		size := min(chunkBytes, n-at)
		sum = combineSums(sum, binary.LittleEndian.Uint32(f.Sums[4*k:]), size)
		at += size
	}
	return sum
}

// resumePart opens the file that f describes, the part file or the complete file of o. It keeps the
// first from bytes; further ones are to be appended. from is a number of bytes that f.sum accepts.
// head is the bytes before the tensors, with which the file must begin. If f is the complete file,
// the result has its final name already. Otherwise the part file is locked, and the caller must
// call place or abandon. The error is ErrBusy if the file has changed since or another receiver
// uses it, matches ErrProtocol if its header differs, or is one of package os.
func (s *Store) resumePart(o fileOffer, f *found, from int, head []byte) (*partFile, error) {
	name, flags := o.Name, os.O_RDONLY
	if !f.final {
		name, flags = partOf(o.Name), os.O_RDWR
	}
	file, err := s.root.OpenFile(name, flags, 0)
	if err != nil {
		return nil, err
	}
	p := &partFile{
		fileOffer: o, store: s, file: file, named: f.final, received: from, written: from, sum: f.sum(from), found: from, flushed: from,
	}
	if err := p.checkResumed(f, head); err != nil {
		_ = file.Close()
		return nil, err
	}
	if f.final {
		return p, file.Close()
	}
	if err := file.Truncate(int64(from)); err != nil {
		p.abandon(true)
		return nil, err
	}
	preallocate(file, o.Bytes)
	return p, nil
}

// checkResumed locks the file of p, unless it has its final name, and returns nil if it is what f
// describes and begins with head. The error is ErrBusy, matches ErrProtocol, or is one of package
// os.
func (p *partFile) checkResumed(f *found, head []byte) error {
	if !f.final {
		if err := lock(p.file); err != nil {
			return err
		}
	}
	if !f.isSame(p.file) {
		return ErrBusy
	}
	begin := make([]byte, len(head))
	if _, err := p.file.ReadAt(begin, 0); err != nil {
		return err
	}
	if !bytes.Equal(begin, head) {
		return protocolErrorf("a header that differs from that of the file to resume")
	}
	return nil
}
