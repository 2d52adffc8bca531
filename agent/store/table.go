package store

import (
	"fmt"
	"strconv"
	"sync"
)

// table holds the values, and tells those who wait. No method blocks. Values in
// it never change, so that they may be handed out without a copy.
type table struct {
	limits Limits

	mu     sync.Mutex
	closed bool
	values map[string][]byte
	bytes  int // of keys and values
	awaits map[string]*await
	feeds  map[string]map[*feed]struct{}
}

// await is where everybody waits for one key. Its channel is closed when the
// key comes to exist, and when the table is closed.
type await struct {
	came    chan struct{}
	waiting int
}

func newTable(l Limits) *table {
	return &table{
		limits: l.orDefaults(),
		values: make(map[string][]byte),
		awaits: make(map[string]*await),
		feeds:  make(map[string]map[*feed]struct{}),
	}
}

// set takes over value.
func (t *table) set(key string, value []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	return t.put(key, value)
}

func (t *table) get(key string) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	value, ok := t.values[key]
	if !ok {
		return nil, ErrNotFound
	}
	return value, nil
}

// has returns whether all keys exist.
func (t *table) has(keys []string) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false, ErrClosed
	}
	for _, k := range keys {
		if _, ok := t.values[k]; !ok {
			return false, nil
		}
	}
	return true, nil
}

func (t *table) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.values)
}

func (t *table) add(key string, delta int64) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return 0, ErrClosed
	}
	old, exists := t.values[key]
	n, err := number(old, exists)
	if err != nil {
		return 0, err
	}
	if n, err = sum(n, delta); err != nil {
		return 0, err
	}
	return n, t.put(key, strconv.AppendInt(nil, n, 10))
}

// number is what a value counts as.
func number(value []byte, exists bool) (int64, error) {
	if !exists {
		return 0, nil
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return 0, ErrNotNumber
	}
	return n, nil
}

// compareAndSet takes over desired.
func (t *table) compareAndSet(key string, expected, desired []byte) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	value, exists := t.values[key]
	put, err := judge(value, exists, expected)
	if err != nil || !put {
		return value, err
	}
	return desired, t.put(key, desired)
}

// judge says whether a compare-and-set changes a key.
func judge(value []byte, exists bool, expected []byte) (bool, error) {
	if !exists && len(expected) > 0 {
		return false, ErrNotFound
	}
	return string(value) == string(expected), nil
}

func (t *table) remove(key string) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false, ErrClosed
	}
	old, exists := t.values[key]
	if !exists {
		return false, nil
	}
	delete(t.values, key)
	t.bytes -= len(key) + len(old)
	t.tell(key, update{old: old, had: true})
	return true, nil
}

// put is called with the lock held.
func (t *table) put(key string, value []byte) error {
	if err := t.limits.check(key, value); err != nil {
		return err
	}
	old, had := t.values[key]
	bytes, keys := t.bytes+len(value)-len(old), len(t.values)
	if !had {
		bytes, keys = bytes+len(key), keys+1
	}
	if keys > t.limits.Keys || bytes > t.limits.TotalBytes && bytes > t.bytes {
		return fmt.Errorf("%w: the store is full, with %d keys of %d bytes in all", ErrLimit, len(t.values), t.bytes)
	}
	t.values[key], t.bytes = value, bytes
	if a := t.awaits[key]; a != nil {
		close(a.came)
		delete(t.awaits, key)
	}
	t.tell(key, update{old: old, had: had, now: value, has: true})
	return nil
}

func (t *table) tell(key string, u update) {
	for f := range t.feeds[key] {
		f.push(u)
	}
}

// await returns nil if key exists, and else a channel that is closed once it
// does, or the table is closed. Give it back to forgo.
func (t *table) await(key string) (*await, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	if _, ok := t.values[key]; ok {
		return nil, nil
	}
	a := t.awaits[key]
	if a == nil {
		a = &await{came: make(chan struct{})}
		t.awaits[key] = a
	}
	a.waiting++
	return a, nil
}

// forgo lets the table forget a key that nobody waits for any more.
func (t *table) forgo(key string, a *await) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a.waiting--
	if a.waiting == 0 && t.awaits[key] == a {
		delete(t.awaits, key)
	}
}

// follow has every change of key told to f, until leave.
func (t *table) follow(key string, f *feed) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	if t.feeds[key] == nil {
		t.feeds[key] = make(map[*feed]struct{})
	}
	t.feeds[key][f] = struct{}{}
	return nil
}

func (t *table) leave(key string, f *feed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.feeds[key], f)
	if len(t.feeds[key]) == 0 {
		delete(t.feeds, key)
	}
}

// close wakes everybody.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for key, a := range t.awaits {
		close(a.came)
		delete(t.awaits, key)
	}
	for _, feeds := range t.feeds {
		for f := range feeds {
			f.end(ErrClosed)
		}
	}
	clear(t.feeds)
	clear(t.values)
}
