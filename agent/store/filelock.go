package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/flock"
)

// locked runs f while what the file says is known, and, if alone is set, while
// nobody else may write or read it.
func (s *File) locked(ctx context.Context, alone bool, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-s.done:
		return ErrClosed
	default:
	}
	select {
	case s.turn <- struct{}{}:
	case <-s.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turn }()
	if s.broken != nil {
		return s.broken
	}
	if !alone {
		// A size that is known holds whole records only: no need to lock.
		size, err := s.size()
		if err != nil {
			return err
		}
		if size == s.offset {
			return f()
		}
	}
	return s.underLock(ctx, alone, f)
}

func (s *File) underLock(ctx context.Context, alone bool, f func() error) error {
	if err := s.lock(ctx, alone); err != nil {
		return err
	}
	err := s.refresh(alone)
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

// lock tries again and again, because a call that waits in the kernel cannot be
// given up.
func (s *File) lock(ctx context.Context, alone bool) error {
	for wait := 50 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		if ok, err := flock.Try(s.f, alone); ok || err != nil {
			return err
		}
		if err := s.rest(ctx, nil, wait); err != nil {
			return err
		}
	}
}

func (s *File) size() (int64, error) {
	info, err := s.f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// refresh reads what others have written. Whoever is alone also removes what
// somebody began to write and did not live to end.
func (s *File) refresh(alone bool) error {
	size, err := s.size()
	if err != nil {
		return err
	}
	if size < s.offset {
		return fmt.Errorf("%w: the file has become shorter", ErrCorrupt)
	}
	if size > int64(s.limits.TotalBytes) {
		return fmt.Errorf("%w: a file of %d bytes, and %d are allowed", ErrLimit, size, s.limits.TotalBytes)
	}
	if s.offset == 0 {
		if err := s.begin(size, alone); err != nil {
			return err
		}
	}
	if err := s.scan(size); err != nil || !alone || size <= s.offset {
		return err
	}
	return s.f.Truncate(s.offset)
}

// begin checks the first bytes, or writes them where there are none.
func (s *File) begin(size int64, alone bool) error {
	head := make([]byte, min(size, int64(len(fileMagic))))
	if _, err := s.f.ReadAt(head, 0); err != nil {
		return err
	}
	if string(head) != fileMagic[:len(head)] {
		return fmt.Errorf("%w: it begins with %q", ErrCorrupt, head)
	}
	if len(head) < len(fileMagic) && alone {
		if _, err := s.f.WriteAt([]byte(fileMagic), 0); err != nil {
			return err
		}
	}
	s.offset = int64(len(fileMagic))
	return nil
}

func (s *File) scan(size int64) error {
	part := io.NewSectionReader(s.f, s.offset, max(size-s.offset, 0))
	records := scanner{r: bufio.NewReader(part), left: part.Size()}
	for {
		r, n, err := records.next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		s.apply(r, n)
	}
}

// apply takes over the value of r, which takes n bytes in the file.
func (s *File) apply(r record, n int64) {
	s.offset += n
	s.changed[r.key] = s.offset
	if r.kind == recordDelete {
		delete(s.values, r.key)
		return
	}
	s.values[r.key] = r.value
}

func (s *File) put(key string, value []byte) error {
	if err := s.limits.check(key, value); err != nil {
		return err
	}
	if _, exists := s.values[key]; !exists && len(s.values) >= s.limits.Keys {
		return fmt.Errorf("%w: the store is full, with %d keys", ErrLimit, len(s.values))
	}
	return s.write(record{kind: recordSet, key: key, value: own(value)})
}

// write appends a record. One that cannot be written whole is taken back.
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
