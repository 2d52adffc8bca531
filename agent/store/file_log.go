package store

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/flock"
)

// access calls f and returns its error, or else that of unlocking the file. During the call of f
// the contents in memory are up to date and s.sem is held. If exclusive is true access also holds
// the exclusive lock of the file, so that f may write. Otherwise it takes the shared lock, and only
// if the size of the file differs from s.offset.
//
// access does not call f if ctx has ended, the store is closed, or the file cannot be locked or
// read. The error is then that of ctx, ErrClosed, or that of lock or refresh. After an error that
// matches ErrCorrupt no later call of access calls its f.
func (s *File) access(ctx context.Context, exclusive bool, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-s.done:
		return ErrClosed
	default:
	}
	select {
	case s.sem <- struct{}{}:
	case <-s.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.sem }()
	if s.broken != nil {
		return s.broken
	}
	if !exclusive {
		// A known size means that all bytes are known records: no lock is needed.
		size, err := s.size()
		if err != nil {
			return err
		}
		if size == s.offset {
			return f()
		}
	}
	if err := s.lock(ctx, exclusive); err != nil {
		return err
	}
	err := s.refresh(exclusive)
	if err == nil {
		err = f()
	}
	if errors.Is(err, ErrCorrupt) {
		s.broken = err
	}
	if unlocked := flock.Unlock(s.f); err == nil {
		err = unlocked
	}
	return err
}

// lock acquires the exclusive lock of the file if exclusive is true, and the shared lock otherwise.
// It polls until it has the lock, because a blocking flock(2) could not be cancelled. The error is
// that of ctx, ErrClosed once the store is closed, or that of flock(2). The caller unlocks the
// file.
func (s *File) lock(ctx context.Context, exclusive bool) error {
	for wait := 50 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		if ok, err := flock.Try(s.f, exclusive); ok || err != nil {
			return err
		}
		if err := s.sleep(ctx, nil, wait); err != nil {
			return err
		}
	}
}

// size returns the present size of the file in bytes, or the error of stat(2).
func (s *File) size() (int64, error) {
	info, err := s.f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// refresh reads the records that other processes have appended and applies them to the contents in
// memory. If exclusive is true it also truncates an incomplete last record, whose writer was
// killed, and completes the beginning of a new file. The error matches ErrCorrupt or ErrLimit, or
// is that of the file. The caller holds s.sem and the lock of the file, exclusively if exclusive is
// true.
func (s *File) refresh(exclusive bool) error {
	size, err := s.size()
	if err != nil {
		return err
	}
	if size < s.offset {
		return fmt.Errorf("%w: the file has become shorter", ErrCorrupt)
	}
	if size > int64(s.limits.TotalBytes) {
		return fmt.Errorf("%w: a file of %d bytes, but at most %d are allowed", ErrLimit, size, s.limits.TotalBytes)
	}
	if s.offset == 0 {
		if err := s.checkMagic(size, exclusive); err != nil {
			return err
		}
	}
	part := io.NewSectionReader(s.f, s.offset, max(size-s.offset, 0))
	records := scanner{r: bufio.NewReader(part), remaining: part.Size()}
	for {
		r, n, err := records.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		s.apply(r, n)
	}
	if !exclusive || size <= s.offset {
		return nil
	}
	return s.f.Truncate(s.offset)
}

// checkMagic returns an error that matches ErrCorrupt if the file, which is size bytes long, does
// not begin with fileMagic or a part of it. If the file is shorter than fileMagic and exclusive is
// true, it writes fileMagic. Unless it fails, it sets s.offset to the position after fileMagic,
// where the first record begins. Other errors are those of the file.
func (s *File) checkMagic(size int64, exclusive bool) error {
	head := make([]byte, min(size, int64(len(fileMagic))))
	if _, err := s.f.ReadAt(head, 0); err != nil {
		return err
	}
	if string(head) != fileMagic[:len(head)] {
		return fmt.Errorf("%w: it begins with %q", ErrCorrupt, head)
	}
	if len(head) < len(fileMagic) && exclusive {
		if _, err := s.f.WriteAt([]byte(fileMagic), 0); err != nil {
			return err
		}
	}
	s.offset = int64(len(fileMagic))
	return nil
}

// apply applies r, a record at s.offset whose encoding has n bytes, to the contents in memory. It
// keeps r.value. The caller holds s.sem.
func (s *File) apply(r record, n int64) {
	s.offset += n
	s.changed[r.key] = s.offset
	if r.kind == recordDelete {
		delete(s.values, r.key)
		return
	}
	s.values[r.key] = r.value
}

// put appends a record to the file that sets key to a copy of value, and applies it to the contents
// in memory. The error matches ErrLimit if key or value is too long, or there are too many keys or
// bytes; nothing is changed then. Otherwise it is that of the file. The caller holds s.sem and the
// exclusive lock.
func (s *File) put(key string, value []byte) error {
	if err := s.limits.check(key, value); err != nil {
		return err
	}
	if _, exists := s.values[key]; !exists && len(s.values) >= s.limits.MaxKeys {
		return fmt.Errorf("%w: the store is full, with %d keys", ErrLimit, len(s.values))
	}
	return s.write(record{kind: recordSet, key: key, value: cloneValue(value)})
}

// write appends a record to the file and applies it to the contents in memory, which keep r.value.
// If writing fails it truncates the file to its previous length. If the file would become too large
// it changes nothing, and the error matches ErrLimit. Other errors are those of the file. The
// caller holds s.sem and the exclusive lock.
func (s *File) write(r record) error {
	b := r.append(nil)
	if s.offset+int64(len(b)) > int64(s.limits.TotalBytes) {
		return fmt.Errorf("%w: the file is full, with %d bytes", ErrLimit, s.offset)
	}
	if _, err := s.f.WriteAt(b, s.offset); err != nil {
		return errors.Join(err, s.f.Truncate(s.offset))
	}
	s.apply(r, int64(len(b)))
	return nil
}

// A file begins with fileMagic. Records follow. A record has a header of three
// uint32: the length of the body, the CRC-32C of the body, and the CRC-32C of these
// eight bytes. The body is a kind, the length of the key as uint32, the key and the
// value. Numbers are little endian. Only the last record may be incomplete, if its
// writer was killed; the next writer replaces it.
const (
	fileMagic    = "tpstore\x01"
	recordHeader = 12
	bodyHeader   = 5
)

const (
	recordSet    = 1
	recordDelete = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// record is one change of a key.
type record struct {
	kind  byte
	key   string
	value []byte
}

// append appends the encoding of r to dst and returns the extended slice.
func (r record) append(dst []byte) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, recordHeader)...)
	dst = append(dst, r.kind)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(r.key)))
	dst = append(append(dst, r.key...), r.value...)
	head, body := dst[start:start+recordHeader], dst[start+recordHeader:]
	binary.LittleEndian.PutUint32(head, uint32(len(body)))
	binary.LittleEndian.PutUint32(head[4:], crc32.Checksum(body, castagnoli))
	binary.LittleEndian.PutUint32(head[8:], crc32.Checksum(head[:8], castagnoli))
	return dst
}

// scanner reads the records of a section of a store's file.
type scanner struct {
	r         *bufio.Reader
	remaining int64 // bytes of the section that were not read yet
}

// next returns the next record, whose value belongs to the caller, and the size of its encoding in
// bytes. The error is io.EOF if no bytes, or only those of an incomplete record, remain in the
// section. It matches ErrCorrupt if a checksum or the form of the record is wrong. Otherwise it is
// that of reading.
func (s *scanner) next() (r record, size int64, err error) {
	if s.remaining < recordHeader {
		return record{}, 0, io.EOF
	}
	var head [recordHeader]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return record{}, 0, unexpectedEOF(err)
	}
	if binary.LittleEndian.Uint32(head[8:]) != crc32.Checksum(head[:8], castagnoli) {
		return record{}, 0, fmt.Errorf("%w: wrong checksum of a length", ErrCorrupt)
	}
	length := int64(binary.LittleEndian.Uint32(head[:]))
	if s.remaining-recordHeader < length {
		return record{}, 0, io.EOF
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(s.r, body); err != nil {
		return record{}, 0, unexpectedEOF(err)
	}
	if binary.LittleEndian.Uint32(head[4:]) != crc32.Checksum(body, castagnoli) {
		return record{}, 0, fmt.Errorf("%w: wrong checksum", ErrCorrupt)
	}
	s.remaining -= recordHeader + length
	if length < bodyHeader {
		return record{}, 0, fmt.Errorf("%w: a record of %d bytes", ErrCorrupt, length)
	}
	kind, n, tail := body[0], binary.LittleEndian.Uint32(body[1:]), body[bodyHeader:]
	if kind != recordSet && kind != recordDelete || uint64(n) > uint64(len(tail)) {
		return record{}, 0, fmt.Errorf("%w: a record of kind %d with a key of %d bytes", ErrCorrupt, kind, n)
	}
	return record{kind: kind, key: string(tail[:n]), value: tail[n:]}, recordHeader + length, nil
}
