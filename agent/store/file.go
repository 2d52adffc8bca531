package store

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"sync"
	"time"
)

// File is a [Store] in a file that processes of one machine share, or of several
// machines on a file system where flock(2) works between them. It needs no server.
// A process may be killed at any time; its last change is then either complete or
// not made.
//
// File systems do not report changes to all processes, so Wait and Watchers poll the size of the
// file, from 1,000 times a second down to 20.
//
// The file is a log: each change appends to it, up to Limits.TotalBytes in all. Use
// a new file for each group, and do not remove it while the group runs. Changes
// survive the processes, but they are not synced to the disk.
type File struct {
	path      string
	limits    Limits
	f         *os.File
	sem       chan struct{} // held while the fields below, or the lock of f, are used
	done      chan struct{} // closed by Close
	closeOnce func() error

	offset  int64 // the end of the last record that was read or written
	values  map[string][]byte
	changed map[string]int64 // the end of the last record of each key that was ever set
	broken  error            // why the file is not usable any more
}

// OpenFile opens the store in the file at path. It creates the file if it does not exist, and
// initialises an empty one. ctx bounds the wait for the file's lock, not the life of the File. The
// caller must close the File. The error, an [*Error], matches [ErrCorrupt] if the file is no store
// or is damaged, and [ErrLimit] if it is larger than l.TotalBytes.
func OpenFile(ctx context.Context, path string, l Limits) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fail("open", path, err)
	}
	s := &File{
		path:    path,
		limits:  l.orDefaults(),
		f:       f,
		sem:     make(chan struct{}, 1),
		done:    make(chan struct{}),
		values:  make(map[string][]byte),
		changed: make(map[string]int64),
	}
	s.closeOnce = sync.OnceValue(func() error {
		close(s.done)
		s.sem <- struct{}{} // never released; its last holder returned because of done
		return fail("close", path, f.Close())
	})
	if err := s.access(ctx, true, func() error { return nil }); err != nil {
		s.Close()
		return nil, fail("open", path, err)
	}
	return s, nil
}

// Set appends a change to the file that sets key to value. It keeps a copy of value. The error, an
// [*Error], matches ErrLimit if key or value is too long, or the file or the number of keys would
// exceed its limit.
func (s *File) Set(ctx context.Context, key string, value []byte) error {
	return fail("set", key, s.access(ctx, true, func() error { return s.put(key, value) }))
}

// Get returns a copy of the value of key, after it has read the changes that other processes have
// appended. The error, an [*Error], matches ErrNotFound if there is no such key; the value is then
// nil.
func (s *File) Get(ctx context.Context, key string) (value []byte, err error) {
	err = s.access(ctx, false, func() error {
		v, ok := s.values[key]
		if !ok {
			return ErrNotFound
		}
		value = bytes.Clone(v)
		return nil
	})
	if err != nil {
		return nil, fail("get", key, err)
	}
	return value, nil
}

// Wait blocks until each of keys has existed, for which it polls the file. The file is a log, so it
// also finds a key that was created and deleted between two polls. The error is an [*Error]. It
// matches ErrClosed if this handle is closed, the error of ctx if ctx ends, or ErrLimit if there are
// too many keys or one is too long.
func (s *File) Wait(ctx context.Context, keys ...string) error {
	if err := s.limits.checkAll(keys); err != nil {
		return fail("wait", firstKey(keys), err)
	}
	var last map[string]int64 // the last change of each key when the call began
	err := s.poll(ctx, s.done, func() bool {
		if last == nil {
			last = make(map[string]int64, len(keys))
			for _, key := range keys {
				last[key] = s.changed[key]
			}
		}
		for len(keys) > 0 {
			_, exists := s.values[keys[0]]
			if !exists && s.changed[keys[0]] == last[keys[0]] {
				return false
			}
			keys = keys[1:]
		}
		return true
	})
	return fail("wait", firstKey(keys), err)
}

// Add adds delta to the decimal number that key holds, where a missing key counts as 0, and returns
// the sum. The error, an [*Error], matches ErrNotNumber if the value or the sum is not a 64-bit
// number, and ErrLimit if a limit of the store would be exceeded; the value is then unchanged. The
// sum is 0 after an error.
func (s *File) Add(ctx context.Context, key string, delta int64) (n int64, err error) {
	err = s.access(ctx, true, func() error {
		old, exists := s.values[key]
		if n, err = sum(old, exists, delta); err != nil {
			return err
		}
		return s.put(key, strconv.AppendInt(nil, n, 10))
	})
	if err != nil {
		return 0, fail("add", key, err)
	}
	return n, nil
}

// CompareAndSet sets key to a copy of desired if its value is expected, or if key does not exist
// and expected is empty. It returns a copy of the value after the call. The error, an [*Error],
// matches ErrNotFound if key does not exist and expected is not empty, and ErrLimit if a limit of
// the store would be exceeded. The value is nil after an error.
func (s *File) CompareAndSet(ctx context.Context, key string, expected, desired []byte) (now []byte, err error) {
	err = s.access(ctx, true, func() error {
		value, exists := s.values[key]
		put, err := shouldSwap(value, exists, expected)
		if err != nil {
			return err
		}
		if put {
			value = desired
			err = s.put(key, desired)
		}
		now = cloneValue(value)
		return err
	})
	if err != nil {
		return nil, fail("compare-and-set", key, err)
	}
	return now, nil
}

// Delete removes key and reports whether it existed. The removal is appended to the file, so the
// error, an [*Error], matches ErrLimit if the file is full. After an error the result is false.
func (s *File) Delete(ctx context.Context, key string) (existed bool, err error) {
	err = s.access(ctx, true, func() error {
		if _, existed = s.values[key]; !existed {
			return nil
		}
		return s.write(record{kind: recordDelete, key: key})
	})
	return existed && err == nil, fail("delete", key, err)
}

// Watch returns a Watcher of the changes of key that are made after the call. Its Next polls the
// file. ctx bounds the call only. The caller closes the Watcher. The error is an [*Error].
func (s *File) Watch(ctx context.Context, key string) (Watcher, error) {
	w := &fileWatcher{store: s, key: key, done: make(chan struct{})}
	w.closeOnce = sync.OnceFunc(func() { close(w.done) })
	err := s.access(ctx, false, func() error {
		w.seen = s.changed[key]
		return nil
	})
	if err != nil {
		return nil, fail("watch", key, err)
	}
	return w, nil
}

// Close waits until no call uses the file, closes this handle on the file, and returns the error of
// closing the handle, an [*Error]; every later Close returns the same error. Calls that are
// waiting, later calls and Watchers of the handle fail with ErrClosed. The file remains.
func (s *File) Close() error { return s.closeOnce() }

// poll calls found repeatedly, with growing pauses of up to 50 ms, until found returns true; then
// it returns nil. Before each call of found it reads new changes of the file, and it holds s.sem
// during the call. The error is that of ctx, ErrClosed once done or the store is closed, or that of
// the file.
func (s *File) poll(ctx context.Context, done <-chan struct{}, found func() bool) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		ok := false
		err := s.access(ctx, false, func() error {
			ok = found()
			return nil
		})
		if ok || err != nil {
			return err
		}
		if err := s.sleep(ctx, done, wait); err != nil {
			return err
		}
	}
}

// sleep blocks for the duration d and returns nil. It returns ErrClosed as soon as the channel done
// or the store is closed, and the error of ctx as soon as ctx ends. done may be nil.
func (s *File) sleep(ctx context.Context, done <-chan struct{}, d time.Duration) error {
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

// fileWatcher is a [Watcher] that polls a File.
type fileWatcher struct {
	store     *File
	key       string
	seen      int64 // end of the record of the last change that Next returned
	done      chan struct{}
	closeOnce func()
}

// Next blocks until the watched key has changed since the last Next, or since Watch, and returns
// the latest change, whose value belongs to the caller. It polls the file. The error, an [*Error],
// matches ErrClosed once the Watcher or its store is closed, or the error of ctx. Calls must not be
// concurrent.
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
	if err != nil {
		return Change{}, fail("watch", w.key, err)
	}
	return c, nil
}

// Close makes Next calls, also one under way, fail with ErrClosed, and returns nil. Later calls of
// Close do nothing.
func (w *fileWatcher) Close() error {
	w.closeOnce()
	return nil
}
