package store

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"sync"
	"time"
)

// File is a store in a file that processes share, of one machine or through a
// file system that has flock(2) for all of them. Nobody needs to serve it. A
// process may be killed at any time: its last change is then made, or not.
//
// Nothing tells that a file has changed, so Wait and Watchers look at its size
// again and again, from 1,000 times a second down to 20.
//
// Each change takes room in the file for good, up to Limits.TotalBytes in all: use
// a new file for each group, and let nobody remove it while the group lives. What
// was written stays when the machine goes on; it is not forced to the disk.
type File struct {
	path   string
	limits Limits
	f      *os.File
	turn   chan struct{} // whoever holds it uses what is below, and the lock of f
	done   chan struct{} // closed by Close
	shut   func() error

	offset  int64 // up to where the file is known
	values  map[string][]byte
	changed map[string]int64 // by keys that were ever set: where their last record ends
	broken  error            // the file is not one of ours any more
}

// OpenFile opens the store at path, and makes one where there is no file, or an
// empty one. The caller closes it.
func OpenFile(ctx context.Context, path string, l Limits) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fail("open", path, err)
	}
	s := &File{
		path:    path,
		limits:  l.orDefaults(),
		f:       f,
		turn:    make(chan struct{}, 1),
		done:    make(chan struct{}),
		values:  make(map[string][]byte),
		changed: make(map[string]int64),
	}
	s.shut = sync.OnceValue(s.close)
	if err := s.locked(ctx, true, func() error { return nil }); err != nil {
		s.Close()
		return nil, fail("open", path, err)
	}
	return s, nil
}

// Set implements [Store].
func (s *File) Set(ctx context.Context, key string, value []byte) error {
	return fail("set", key, s.locked(ctx, true, func() error { return s.put(key, value) }))
}

// Get implements [Store].
func (s *File) Get(ctx context.Context, key string) (value []byte, err error) {
	err = s.locked(ctx, false, func() error {
		v, ok := s.values[key]
		if !ok {
			return ErrNotFound
		}
		value = bytes.Clone(v)
		return nil
	})
	return value, fail("get", key, err)
}

// Wait implements [Store].
func (s *File) Wait(ctx context.Context, keys ...string) error {
	if err := s.limits.checkAll(keys); err != nil {
		return fail("wait", first(keys), err)
	}
	err := s.poll(ctx, s.done, func() bool {
		for len(keys) > 0 {
			if _, ok := s.values[keys[0]]; !ok {
				return false
			}
			keys = keys[1:]
		}
		return true
	})
	return fail("wait", first(keys), err)
}

// Add implements [Store].
func (s *File) Add(ctx context.Context, key string, delta int64) (n int64, err error) {
	err = s.locked(ctx, true, func() error {
		old, exists := s.values[key]
		if n, err = number(old, exists); err != nil {
			return err
		}
		if n, err = sum(n, delta); err != nil {
			return err
		}
		return s.put(key, strconv.AppendInt(nil, n, 10))
	})
	if err != nil {
		return 0, fail("add", key, err)
	}
	return n, nil
}

// CompareAndSet implements [Store].
func (s *File) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (now []byte, err error) {
	err = s.locked(ctx, true, func() error {
		value, exists := s.values[key]
		put, err := judge(value, exists, expected)
		if err != nil {
			return err
		}
		if put {
			value = desired
			err = s.put(key, desired)
		}
		now = own(value)
		return err
	})
	if err != nil {
		return nil, fail("compare-and-set", key, err)
	}
	return now, nil
}

// Delete implements [Store].
func (s *File) Delete(ctx context.Context, key string) (existed bool, err error) {
	err = s.locked(ctx, true, func() error {
		if _, existed = s.values[key]; !existed {
			return nil
		}
		return s.write(record{kind: recordDelete, key: key})
	})
	return existed && err == nil, fail("delete", key, err)
}

// Watch implements [Store].
func (s *File) Watch(ctx context.Context, key string) (Watcher, error) {
	w := &fileWatcher{store: s, key: key, done: make(chan struct{})}
	w.shut = sync.OnceFunc(func() { close(w.done) })
	err := s.locked(ctx, false, func() error {
		w.seen = s.changed[key]
		return nil
	})
	if err != nil {
		return nil, fail("watch", key, err)
	}
	return w, nil
}

// Close implements [Store].
func (s *File) Close() error { return s.shut() }

func (s *File) close() error {
	close(s.done)
	s.turn <- struct{}{} // for good: whoever had it has heard of done
	return fail("close", s.path, s.f.Close())
}

// poll looks at the store until found, which is called in turn.
func (s *File) poll(ctx context.Context, done <-chan struct{}, found func() bool) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		ok := false
		err := s.locked(ctx, false, func() error {
			ok = found()
			return nil
		})
		if ok || err != nil {
			return err
		}
		if err := s.rest(ctx, done, wait); err != nil {
			return err
		}
	}
}

// rest waits for a while, or fails when it is not worth waiting any more.
func (s *File) rest(ctx context.Context, done <-chan struct{}, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-done:
		return ErrClosed
	case <-s.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

type fileWatcher struct {
	store *File
	key   string
	seen  int64 // where the last record of key ends that was told
	done  chan struct{}
	shut  func()
}

func (w *fileWatcher) Next(ctx context.Context) (c Change, err error) {
	select {
	case <-w.done:
		return Change{}, fail("watch", w.key, ErrClosed)
	default:
	}
	s := w.store
	err = s.poll(ctx, w.done, func() bool {
		if s.changed[w.key] == w.seen {
			return false
		}
		w.seen = s.changed[w.key]
		value, exists := s.values[w.key]
		c = Change{Value: bytes.Clone(value), Exists: exists}
		return true
	})
	return c, fail("watch", w.key, err)
}

func (w *fileWatcher) Close() error {
	w.shut()
	return nil
}
