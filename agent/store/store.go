// Package store is where the workers of a group find each other: a small table
// of keys and values that all of them share, with ways to wait for a key and to
// agree on one.
//
// [NewMemory] is a table within one process. [Serve] offers one to other
// processes over TCP, and [Dial] reaches it; both speak the protocol of PyTorch's
// TCPStore as of version 1.13, so that either end may be a PyTorch process.
// [OpenFile] keeps the table in a file that processes of one machine share.
// [Prefix] is a part of another store. [Open] takes a URL and does what it says.
//
//	s, err := store.Open(ctx, "tcp://10.0.0.1:29500", store.Options{Rank: rank})
//	err = s.Set(ctx, "addrs/worker0", []byte("uv://10.0.0.1:4000"))
//	addr, err := store.Await(ctx, s, "addrs/worker1")
//
// A store is made for a rendezvous: some thousand short values, each read by all.
// It does not survive its server, and whoever reaches it may change it.
package store

import (
	"context"
	"errors"
)

// Store is a table of values by key. Every implementation keeps what
// agent/store/storetest demands.
//
// All methods may be called concurrently, by any number of goroutines. What one
// call has changed every later call sees, through whatever handle. The caller
// keeps the values that it passes and owns those that it gets. Keys and values
// are any bytes, the empty ones included, within the limits of the store.
//
// A call returns when its context ends, with an error that matches the
// context's own (and [ErrTimeout] where that was a deadline); it may or may not
// have changed the store then, unless the context had ended before. Close ends
// all calls with [ErrClosed]. Errors are of type [*Error].
type Store interface {
	// Set gives key a value, whether it has one or not.
	Set(ctx context.Context, key string, value []byte) error

	// Get returns the value of key, or [ErrNotFound]. See [Await] to wait for it.
	Get(ctx context.Context, key string) ([]byte, error)

	// Wait returns when every one of keys has been seen to exist.
	Wait(ctx context.Context, keys ...string) error

	// Add adds delta to the number that key holds as decimal text, and returns
	// the sum. A key that does not exist counts as 0. A value that is no number
	// of 64 bits, or a sum that is none, changes nothing and is [ErrNotNumber].
	Add(ctx context.Context, key string, delta int64) (int64, error)

	// CompareAndSet gives key the value desired if its value is expected, or if
	// it does not exist and expected is empty. It returns the value that key has
	// then, which is desired also if somebody else had set just that: let those
	// who compete desire different values. A key that does not exist where
	// expected is not empty is [ErrNotFound].
	CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)

	// Delete removes key and returns whether it existed.
	Delete(ctx context.Context, key string) (bool, error)

	// Watch reports changes of key from now on. ctx bounds the call, and not
	// what it returns. Close the Watcher.
	Watch(ctx context.Context, key string) (Watcher, error)

	// Close ends all calls and all Watchers of this handle. What others see of
	// the same store stays, unless this process serves it. Only the first Close
	// does something.
	Close() error
}

// Watcher tells what becomes of one key.
type Watcher interface {
	// Next waits for a change that it has not returned yet. A caller who is slow
	// may miss changes in between; the last one it always gets. One call at a
	// time. It fails with [ErrClosed] once the Watcher or its store is closed.
	Next(ctx context.Context) (Change, error)

	// Close ends Next. Only the first Close does something.
	Close() error
}

// Change is what has become of a key.
type Change struct {
	Value  []byte // the caller's own; nil where the key has gone
	Exists bool
}

// Await waits until key exists, and returns its value.
func Await(ctx context.Context, s Store, key string) ([]byte, error) {
	for {
		if err := s.Wait(ctx, key); err != nil {
			return nil, err
		}
		// It may be deleted before it is read.
		if value, err := s.Get(ctx, key); !errors.Is(err, ErrNotFound) {
			return value, err
		}
	}
}
