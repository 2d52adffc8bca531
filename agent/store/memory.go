package store

import (
	"bytes"
	"context"
)

// Memory is a store within this process. Nothing but channels and mutexes
// blocks in it, so it works in a bubble of testing/synctest.
type Memory struct{ table *table }

// NewMemory returns an empty store.
func NewMemory(l Limits) *Memory { return &Memory{newTable(l)} }

// Set implements [Store].
func (m *Memory) Set(ctx context.Context, key string, value []byte) error {
	err := ctx.Err()
	if err == nil {
		err = m.table.set(key, own(value))
	}
	return fail("set", key, err)
}

// own copies a value; it is not nil, because that would be no value.
func own(value []byte) []byte { return append([]byte{}, value...) }

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
		return fail("wait", first(keys), err)
	}
	if err := ctx.Err(); err != nil {
		return fail("wait", first(keys), err)
	}
	for _, k := range keys {
		if err := m.table.wait(ctx, k); err != nil {
			return fail("wait", k, err)
		}
	}
	return nil
}

// first names a call with several keys in errors.
func first(keys []string) string {
	if len(keys) == 0 {
		return ""
	}
	return keys[0]
}

// wait returns once key exists.
func (t *table) wait(ctx context.Context, key string) error {
	a, err := t.await(key)
	if err != nil || a == nil {
		return err
	}
	defer t.forgo(key, a)
	select {
	case <-a.came:
		return t.closedErr()
	case <-ctx.Done():
		return ctx.Err()
	}
}

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
	value, err := m.table.compareAndSet(key, expected, own(desired))
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
	f := newFeed()
	if err := m.table.follow(key, f); err != nil {
		return nil, fail("watch", key, err)
	}
	return &watcher{feed: f, key: key, leave: func() { m.table.leave(key, f) }}, nil
}

// Close ends the store, for everybody who uses it.
func (m *Memory) Close() error {
	m.table.close()
	return nil
}
