package store

import (
	"bytes"
	"context"
)

// Memory is a [Store] within one process. It blocks only on channels and mutexes,
// so it works within a bubble of testing/synctest.
type Memory struct{ table *table }

// NewMemory returns an empty store within the limits l.
func NewMemory(l Limits) *Memory { return &Memory{newTable(l)} }

// Set implements [Store].
func (m *Memory) Set(ctx context.Context, key string, value []byte) error {
	err := ctx.Err()
	if err == nil {
		err = m.table.set(key, cloneValue(value))
	}
	return fail("set", key, err)
}

// cloneValue copies a value. The copy is never nil, which would stand for no value.
func cloneValue(value []byte) []byte { return append([]byte{}, value...) }

// Get implements [Store].
func (m *Memory) Get(ctx context.Context, key string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, fail("get", key, err)
	}
	value, err := m.table.get(key)
	return bytes.Clone(value), fail("get", key, err)
}

// Wait implements [Store].
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

// firstKey returns the key by which an error names a call with several keys: the first, or "" if
// there is none.
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

// Add implements [Store].
func (m *Memory) Add(ctx context.Context, key string, delta int64) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, fail("add", key, err)
	}
	n, err := m.table.add(key, delta)
	return n, fail("add", key, err)
}

// CompareAndSet implements [Store].
func (m *Memory) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, fail("compare-and-set", key, err)
	}
	value, err := m.table.compareAndSet(key, expected, cloneValue(desired))
	return bytes.Clone(value), fail("compare-and-set", key, err)
}

// Delete implements [Store].
func (m *Memory) Delete(ctx context.Context, key string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, fail("delete", key, err)
	}
	existed, err := m.table.remove(key)
	return existed, fail("delete", key, err)
}

// Watch implements [Store].
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

// Close closes the store for all of its users, whose calls then fail with [ErrClosed], and
// returns nil.
func (m *Memory) Close() error {
	m.table.close()
	return nil
}
