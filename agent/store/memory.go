package store

import (
	"bytes"
	"context"
)

// Memory is a [Store] within one process. It blocks only on channels and mutexes,
// so it works within a bubble of testing/synctest.
type Memory struct{ table *table }

// NewMemory returns an empty store within the limits l, in which zero fields stand for the
// defaults.
func NewMemory(l Limits) *Memory { return &Memory{newTable(l)} }

// Set sets the value of key to a copy of value. The error, an [*Error], matches ErrLimit if key,
// value or the store would be too large.
func (m *Memory) Set(ctx context.Context, key string, value []byte) error {
	err := ctx.Err()
	if err == nil {
		err = m.table.set(key, cloneValue(value))
	}
	return fail("set", key, err)
}

// cloneValue returns a copy of value, which is empty and not nil if value is nil or empty.
func cloneValue(value []byte) []byte { return append([]byte{}, value...) }

// Get returns a copy of the value of key. The error, an [*Error], matches ErrNotFound if there is
// no such key; the value is then nil.
func (m *Memory) Get(ctx context.Context, key string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, fail("get", key, err)
	}
	value, err := m.table.get(key)
	return bytes.Clone(value), fail("get", key, err)
}

// Wait blocks until each of keys has existed at some time during the call. The error is an
// [*Error]. It matches ErrClosed if the store is closed, the error of ctx if ctx ends, or ErrLimit
// if there are too many keys or one is too long.
func (m *Memory) Wait(ctx context.Context, keys ...string) error {
	if err := m.table.limits.checkAll(keys); err != nil {
		return fail("wait", firstKey(keys), err)
	}
	if err := ctx.Err(); err != nil {
		return fail("wait", firstKey(keys), err)
	}
	for _, k := range keys {
		w, err := m.table.addWaiter(k)
		if err == nil && w != nil {
			select {
			case <-w.created:
				err = m.table.closedErr()
			case <-ctx.Done():
				err = ctx.Err()
			}
			m.table.removeWaiter(k, w)
		}
		if err != nil {
			return fail("wait", k, err)
		}
	}
	return nil
}

// firstKey returns the first of keys, or "" if there is none. It is the key that the error of a
// call with several keys names.
func firstKey(keys []string) string {
	if len(keys) == 0 {
		return ""
	}
	return keys[0]
}

// closedErr returns ErrClosed if the table is closed, and nil otherwise.
func (t *table) closedErr() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	return nil
}

// Add adds delta to the decimal number that key holds, where a missing key counts as 0, and returns
// the sum. The error, an [*Error], matches ErrNotNumber if the value or the sum is not a 64-bit
// number, and ErrLimit if a limit of the store would be exceeded. After an error the value is
// unchanged and the sum is 0.
func (m *Memory) Add(ctx context.Context, key string, delta int64) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, fail("add", key, err)
	}
	n, err := m.table.add(key, delta)
	return n, fail("add", key, err)
}

// CompareAndSet sets key to a copy of desired if its value is expected, or if key does not exist
// and expected is empty. It returns a copy of the value after the call. The error, an [*Error],
// matches ErrNotFound if key does not exist and expected is not empty, or ErrLimit if key, desired
// or the store would be too large; the value is then nil.
func (m *Memory) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, fail("compare-and-set", key, err)
	}
	value, err := m.table.compareAndSet(key, expected, cloneValue(desired))
	return bytes.Clone(value), fail("compare-and-set", key, err)
}

// Delete removes key and reports whether it existed. After an error, an [*Error], the result is
// false.
func (m *Memory) Delete(ctx context.Context, key string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, fail("delete", key, err)
	}
	existed, err := m.table.remove(key)
	return existed, fail("delete", key, err)
}

// Watch returns a Watcher of the changes of key that are made after the call. ctx is used only to
// reject a call whose context has ended. The caller closes the Watcher. The error is an [*Error].
func (m *Memory) Watch(ctx context.Context, key string) (Watcher, error) {
	if err := ctx.Err(); err != nil {
		return nil, fail("watch", key, err)
	}
	s := newSubscription()
	if err := m.table.subscribe(key, s); err != nil {
		return nil, fail("watch", key, err)
	}
	return &watcher{subscription: s, key: key, unsubscribe: func() { m.table.unsubscribe(key, s) }}, nil
}

// Close closes the store for all of its users, removes its contents, and returns nil. Calls under
// way, later calls and Watchers fail with [ErrClosed].
func (m *Memory) Close() error {
	m.table.close()
	return nil
}
