package store

import (
	"bytes"
	"context"
	"sync"
)

// update is a change of one key with what was before.
type update struct {
	old, now []byte
	had, has bool // whether the key existed before, and after
}

// feed brings the changes of one key to one reader. It holds one update, into
// which later ones are merged: a reader who is slow costs no memory.
type feed struct {
	ready chan struct{} // has an element when there is something to take; feeds may share it

	mu      sync.Mutex
	pending bool
	next    update
	err     error // of a feed that has ended
}

func newFeed() *feed { return &feed{ready: newReady()} }

func newReady() chan struct{} { return make(chan struct{}, 1) }

func (f *feed) push(u update) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pending {
		u.old, u.had = f.next.old, f.next.had
	}
	f.next, f.pending = u, true
	f.signal()
}

// end lets take fail, with the first error that it is given.
func (f *feed) end(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
	f.signal()
}

func (f *feed) signal() {
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

// take returns what is there. An ended feed has nothing any more.
func (f *feed) take() (u update, ok bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return update{}, false, f.err
	}
	u, ok = f.next, f.pending
	f.next, f.pending = update{}, false
	return u, ok, nil
}

// watcher is a feed as a Watcher.
type watcher struct {
	*feed
	key   string
	leave func() // called by each Close
}

func (w *watcher) Next(ctx context.Context) (Change, error) {
	for {
		if err := ctx.Err(); err != nil {
			return Change{}, fail("watch", w.key, err)
		}
		u, ok, err := w.take()
		if err != nil {
			return Change{}, fail("watch", w.key, err)
		}
		if ok {
			return Change{Value: bytes.Clone(u.now), Exists: u.has}, nil
		}
		select {
		case <-w.ready:
		case <-ctx.Done():
		}
	}
}

func (w *watcher) Close() error {
	w.leave()
	w.end(ErrClosed)
	return nil
}
