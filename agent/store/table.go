package store

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync"
)

// table holds keys and values and notifies waiting calls and subscriptions. No method
// blocks. A stored value is never modified, so it may be returned without a copy.
type table struct {
	limits Limits

	mu            sync.Mutex
	closed        bool
	values        map[string][]byte
	bytes         int // of keys and values
	waiters       map[string]*keyWaiters
	subscriptions map[string]map[*subscription]struct{}
}

// keyWaiters is shared by all calls that wait for one key. The channel is closed when
// the key is created or the table is closed.
type keyWaiters struct {
	created chan struct{}
	waiting int // number of calls
}

// newTable returns an empty table within the limits l, in which zero fields stand for the defaults.
func newTable(l Limits) *table {
	return &table{
		limits:        l.orDefaults(),
		values:        make(map[string][]byte),
		waiters:       make(map[string]*keyWaiters),
		subscriptions: make(map[string]map[*subscription]struct{}),
	}
}

// set sets key to value, wakes calls that wait for key and notifies its subscriptions. It keeps
// value, which must not be modified afterwards. The error is ErrClosed or matches ErrLimit; the
// table is then unchanged.
func (t *table) set(key string, value []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	return t.put(key, value)
}

// get returns the value of key, which shares the table's memory and must not be modified. The error
// is ErrNotFound or ErrClosed.
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

// exists reports whether all of keys exist. If the table is closed it returns false and ErrClosed.
func (t *table) exists(keys []string) (bool, error) {
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

// count returns the number of keys in the table, which is 0 once the table is closed.
func (t *table) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.values)
}

// add adds delta to the decimal number that key holds, where a missing key counts as 0, and returns
// the sum. The error is ErrClosed, or matches ErrNotNumber or ErrLimit; the table is then
// unchanged.
func (t *table) add(key string, delta int64) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return 0, ErrClosed
	}
	old, exists := t.values[key]
	n, err := sum(old, exists, delta)
	if err != nil {
		return 0, err
	}
	if err := t.put(key, strconv.AppendInt(nil, n, 10)); err != nil {
		return 0, err
	}
	return n, nil
}

// compareAndSet stores desired if the value of key is expected, or if key does not exist and
// expected is empty. It returns the value that key then has: desired itself if it was stored, which
// the table keeps, or else the table's present value. Neither may be modified. The error is
// ErrNotFound if key does not exist and expected is not empty, ErrClosed, or matches ErrLimit.
func (t *table) compareAndSet(key string, expected, desired []byte) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	value, exists := t.values[key]
	swap, err := shouldSwap(value, exists, expected)
	if err != nil {
		return nil, err
	}
	if !swap {
		return value, nil
	}
	if err := t.put(key, desired); err != nil {
		return nil, err
	}
	return desired, nil
}

// shouldSwap reports whether a compare-and-set with this expected value changes a key. exists reports
// whether the key exists, and value is its value. A key that does not exist is changed if expected is
// empty; otherwise the error is ErrNotFound.
func shouldSwap(value []byte, exists bool, expected []byte) (bool, error) {
	if !exists && len(expected) > 0 {
		return false, ErrNotFound
	}
	return string(value) == string(expected), nil
}

// remove removes key, notifies its subscriptions, and reports whether key existed. If the table is
// closed it returns false and ErrClosed.
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
	t.notify(key, update{old: old, existed: true})
	return true, nil
}

// put stores value under key, wakes the calls that wait for key and notifies its subscriptions. It
// keeps value, which must not be modified afterwards. The error matches ErrLimit if the key, the
// value or the store would be too large; the table is then unchanged. The caller holds t.mu.
func (t *table) put(key string, value []byte) error {
	if err := t.limits.check(key, value); err != nil {
		return err
	}
	old, existed := t.values[key]
	bytes, keys := t.bytes+len(value)-len(old), len(t.values)
	if !existed {
		bytes, keys = bytes+len(key), keys+1
	}
	if keys > t.limits.MaxKeys || bytes > t.limits.TotalBytes && bytes > t.bytes {
		return fmt.Errorf("%w: the store is full, with %d keys of %d bytes in all", ErrLimit, len(t.values), t.bytes)
	}
	t.values[key], t.bytes = value, bytes
	if w := t.waiters[key]; w != nil {
		close(w.created)
		delete(t.waiters, key)
	}
	t.notify(key, update{old: old, existed: existed, now: value, exists: true})
	return nil
}

// notify passes u to each subscription of key, without blocking. The caller holds t.mu.
func (t *table) notify(key string, u update) {
	for s := range t.subscriptions[key] {
		s.push(u)
	}
}

// addWaiter registers a call that waits for key. If key exists it returns nil and nil. Otherwise
// the channel created of the result is closed once key is created or the table is closed, and the
// caller must call removeWaiter when it stops waiting. The error is ErrClosed.
func (t *table) addWaiter(key string) (*keyWaiters, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, ErrClosed
	}
	if _, ok := t.values[key]; ok {
		return nil, nil
	}
	w := t.waiters[key]
	if w == nil {
		w = &keyWaiters{created: make(chan struct{})}
		t.waiters[key] = w
	}
	w.waiting++
	return w, nil
}

// removeWaiter ends the registration of one call of addWaiter for key that returned w. If no other
// call waits on w, it removes w from the table.
func (t *table) removeWaiter(key string, w *keyWaiters) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w.waiting--
	if w.waiting == 0 && t.waiters[key] == w {
		delete(t.waiters, key)
	}
}

// subscribe adds s to the subscriptions of key, which the table keeps until unsubscribe or close is
// called. The error is ErrClosed; s is then not added.
func (t *table) subscribe(key string, s *subscription) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	if t.subscriptions[key] == nil {
		t.subscriptions[key] = make(map[*subscription]struct{})
	}
	t.subscriptions[key][s] = struct{}{}
	return nil
}

// unsubscribe removes s from the subscriptions of key. It does nothing if s is not one of them.
func (t *table) unsubscribe(key string, s *subscription) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.subscriptions[key], s)
	if len(t.subscriptions[key]) == 0 {
		delete(t.subscriptions, key)
	}
}

// close removes all keys, wakes all waiting calls, and ends all subscriptions with ErrClosed. Later
// calls of set, get, exists, add, compareAndSet, remove, addWaiter and subscribe fail with
// ErrClosed. close may be called again.
func (t *table) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for key, w := range t.waiters {
		close(w.created)
		delete(t.waiters, key)
	}
	for _, subscriptions := range t.subscriptions {
		for s := range subscriptions {
			s.end(ErrClosed)
		}
	}
	clear(t.subscriptions)
	clear(t.values)
}

// update is a change of one key, with the value before and after it.
type update struct {
	old, now        []byte
	existed, exists bool // whether the key existed before and after
}

// subscription delivers the changes of one key to one reader. It holds at most one
// update, into which later ones are merged, so its memory does not grow if the
// reader is slow.
type subscription struct {
	ready chan struct{} // has an element while an update or an error waits; subscriptions may share it

	mu      sync.Mutex
	pending bool
	next    update
	err     error // set once the subscription has ended
}

// newSubscription returns a subscription without updates, with a ready channel of its own. It does
// not add the subscription to a table.
func newSubscription() *subscription { return &subscription{ready: make(chan struct{}, 1)} }

// push makes u the pending update of the subscription and signals the channel ready. If an earlier
// update is still pending, u replaces it but takes over its old value, so that the result describes
// both changes. push keeps the values of u.
func (s *subscription) push(u update) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending {
		u.old, u.existed = s.next.old, s.next.existed
	}
	s.next, s.pending = u, true
	s.signal()
}

// end makes later calls of receive fail with err, and signals the channel ready. If end was called
// before, the error of the first call stays.
func (s *subscription) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.signal()
}

// signal puts an element into the channel ready, unless the channel is full. It does not block.
func (s *subscription) signal() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// receive removes and returns the pending update, whose values must not be modified. ok is false if
// there is none. receive does not block. Once end has been called it returns the error with which
// the subscription ended, and no update.
func (s *subscription) receive() (u update, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return update{}, false, s.err
	}
	u, ok = s.next, s.pending
	s.next, s.pending = update{}, false
	return u, ok, nil
}

// watcher is a [Watcher] on a subscription.
type watcher struct {
	*subscription
	key         string
	unsubscribe func() // called by each Close
}

// Next blocks until the watched key has changed since the last Next, or since Watch, and returns
// the latest change. The value is a copy. The error, an [*Error], matches ErrClosed once the
// Watcher or its store is closed, the error of ctx, or the reason for which the connection to the
// server ended. Calls must not be concurrent.
func (w *watcher) Next(ctx context.Context) (Change, error) {
	for {
		if err := ctx.Err(); err != nil {
			return Change{}, fail("watch", w.key, err)
		}
		u, ok, err := w.receive()
		if err != nil {
			return Change{}, fail("watch", w.key, err)
		}
		if ok {
			return Change{Value: bytes.Clone(u.now), Exists: u.exists}, nil
		}
		select {
		case <-w.ready:
		case <-ctx.Done():
		}
	}
}

// Close removes the subscription, makes Next fail with ErrClosed, also a call under way, and
// returns nil.
func (w *watcher) Close() error {
	w.unsubscribe()
	w.end(ErrClosed)
	return nil
}
