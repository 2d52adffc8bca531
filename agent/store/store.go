// Package store holds the keys and values through which the workers of a group find
// each other. It can wait until a key exists, watch a key, and change one atomically.
//
// [NewMemory] is a store within one process. [Serve] serves one to other processes
// over TCP, and [Dial] connects to it; both speak the protocol of PyTorch's TCPStore
// as of version 1.13, so either end may be a PyTorch process. [OpenFile] keeps the
// store in a file that processes of one machine share. [Prefix] is a part of another
// store. [Open] opens the store that a URL refers to.
//
//	s, err := store.Open(ctx, "tcp://10.0.0.1:29500", store.Options{Rank: rank})
//	err = s.Set(ctx, "addrs/worker0", []byte("uv://10.0.0.1:4000"))
//	addr, err := store.Await(ctx, s, "addrs/worker1")
//
// A store is meant for a rendezvous: a few thousand short values that every worker
// reads. Its contents do not survive its server. Every process that can connect to it
// can change it.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
)

// Store is a table of values by key. The package agent/store/storetest tests that an
// implementation keeps this contract.
//
// All methods may be called concurrently. A change is visible to every later call on
// any handle. Arguments are copied; results belong to the caller. Keys and values are
// arbitrary bytes, empty ones included, within the limits of the store.
//
// A call returns when its context ends, with an error that matches the context's
// error, and [ErrTimeout] after a deadline. The store may then have changed or not; a
// call whose context had ended before changes nothing. Close makes all calls fail
// with [ErrClosed]. Errors are of type [*Error]; with an error, the other result is the
// zero value.
type Store interface {
	// Set sets the value of key, which need not exist.
	Set(ctx context.Context, key string, value []byte) error

	// Get returns the value of key, or [ErrNotFound]. [Await] waits for it.
	Get(ctx context.Context, key string) ([]byte, error)

	// Wait blocks until each of keys has existed at some time during the call.
	Wait(ctx context.Context, keys ...string) error

	// Add adds delta to the number that key holds as decimal text, and returns the
	// sum. A missing key counts as 0. If the value or the sum is not a 64-bit number,
	// Add changes nothing and returns [ErrNotNumber].
	Add(ctx context.Context, key string, delta int64) (int64, error)

	// CompareAndSet sets key to desired if its value is expected, or if key does not
	// exist and expected is empty. It returns the value after the call. That is also
	// desired if another caller had set the same value before, so competing callers
	// should use different values. If key does not exist and expected is not empty,
	// it returns [ErrNotFound].
	CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)

	// Delete removes key and returns whether it existed.
	Delete(ctx context.Context, key string) (bool, error)

	// Watch returns a Watcher that reports the changes of key made after the call. ctx bounds the call,
	// not the Watcher, which the caller closes.
	Watch(ctx context.Context, key string) (Watcher, error)

	// Close ends all calls and Watchers of this handle. Other handles on the same
	// store stay usable unless this process serves it. Only the first Close has an
	// effect.
	Close() error
}

// Watcher reports the changes of one key.
type Watcher interface {
	// Next blocks until there is a change that it has not returned yet. A slow caller
	// may miss intermediate changes but always gets the last one. Calls must not be
	// concurrent. Next fails with [ErrClosed] once the Watcher or its store is closed.
	Next(ctx context.Context) (Change, error)

	// Close makes Next fail. Only the first Close has an effect.
	Close() error
}

// Change is the state of a key after a change.
type Change struct {
	Value  []byte // belongs to the caller; nil if the key was deleted
	Exists bool
}

// Await blocks until key exists in s, and returns the value, which belongs to the caller. If key is
// deleted before it was read, Await waits again. The error is that of s, which matches that of ctx
// if ctx ends.
func Await(ctx context.Context, s Store, key string) ([]byte, error) {
	for {
		if err := s.Wait(ctx, key); err != nil {
			return nil, err
		}
		// The key may have been deleted in between.
		if value, err := s.Get(ctx, key); !errors.Is(err, ErrNotFound) {
			return value, err
		}
	}
}

// Causes of an [*Error]. Match them with errors.Is.
var (
	// ErrClosed: this process closed the store or the Watcher. It is the same
	// value as net.ErrClosed.
	ErrClosed = net.ErrClosed

	// ErrTimeout: the deadline of the call's context has passed. Such an error
	// matches context.DeadlineExceeded too.
	ErrTimeout = ctxerr.ErrTimeout

	// ErrNotFound: there is no such key.
	ErrNotFound = errors.New("no such key")

	// ErrNotNumber: Add found a value that is not a 64-bit decimal number, or the
	// sum would not be one.
	ErrNotNumber = errors.New("not a number of 64 bits")

	// ErrLimit: a key, a value or the whole store would exceed its Limits.
	ErrLimit = errors.New("limit exceeded")

	// ErrDisconnected: the server closed the connection. A server does that when it
	// stops, and when it rejects a request, because the protocol has no error
	// replies. The next call opens a new connection.
	ErrDisconnected = errors.New("the server closed the connection")

	// ErrProtocol: the peer sent something that violates the protocol.
	ErrProtocol = errors.New("peer broke the protocol")

	// ErrDialect: the peer speaks the protocol of PyTorch 2; this server speaks that
	// of PyTorch 1.13.
	ErrDialect = errors.New("peer speaks the TCPStore protocol of PyTorch 2: only that of 1.13 is understood")

	// ErrCorrupt: a file was not written by this package, or is damaged.
	ErrCorrupt = errors.New("not a store, or damaged")

	// ErrURL: a URL, or the environment that it refers to, does not give the address
	// of a store; the text names what is missing.
	ErrURL = errors.New("bad url")
)

// Error reports which operation failed on which key.
type Error struct {
	Op  string // the method: "get", "wait" ...
	Key string // the key, or else the address, file or URL
	Err error  // the cause
}

func (e *Error) Error() string {
	return "store: " + e.Op + " " + strconv.Quote(e.Key) + ": " + e.Err.Error()
}

// Unwrap returns the cause of the failure, which is the field Err.
func (e *Error) Unwrap() error { return e.Err }

// fail returns an [*Error] with op, key and the cause err, or nil if err is nil. If err itself is
// an [*Error], the result has the cause of err instead. If the cause is context.DeadlineExceeded,
// the result also matches ErrTimeout.
func fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	if inner, ok := err.(*Error); ok {
		err = inner.Err
	}
	return &Error{Op: op, Key: key, Err: ctxerr.Wrap(err)}
}

// Limits bounds what a store holds. A zero field stands for its default.
type Limits struct {
	KeyBytes   int // bytes of one key; default 8 KiB, as in PyTorch
	ValueBytes int // bytes of one value; default 8 MiB, as in PyTorch
	MaxKeys    int // keys in the store, and in one call; default 65,536
	TotalBytes int // bytes of all keys and values; default 256 MiB; in a file, of all changes
}

// orDefaults returns a copy of l in which the fields that are 0 have their default values.
func (l Limits) orDefaults() Limits {
	return Limits{
		KeyBytes:   cmp.Or(l.KeyBytes, 8<<10),
		ValueBytes: cmp.Or(l.ValueBytes, 8<<20),
		MaxKeys:    cmp.Or(l.MaxKeys, 1<<16),
		TotalBytes: cmp.Or(l.TotalBytes, 256<<20),
	}
}

// check returns an error that matches ErrLimit if key or one of values is too long, and nil
// otherwise.
func (l Limits) check(key string, values ...[]byte) error {
	if len(key) > l.KeyBytes {
		return fmt.Errorf("%w: a key of %d bytes, but at most %d are allowed", ErrLimit, len(key), l.KeyBytes)
	}
	for _, v := range values {
		if len(v) > l.ValueBytes {
			return fmt.Errorf("%w: a value of %d bytes, but at most %d are allowed", ErrLimit, len(v), l.ValueBytes)
		}
	}
	return nil
}

// checkAll returns an error that matches ErrLimit if there are too many keys for one call, or one
// of them is too long. Otherwise it returns nil.
func (l Limits) checkAll(keys []string) error {
	if len(keys) > l.MaxKeys {
		return fmt.Errorf("%w: %d keys in one call, but at most %d are allowed", ErrLimit, len(keys), l.MaxKeys)
	}
	for _, k := range keys {
		if err := l.check(k); err != nil {
			return err
		}
	}
	return nil
}

// sum returns the sum of delta and the number that value holds as decimal text, or delta if exists
// is false. The error matches ErrNotNumber if value is not a 64-bit number or the sum overflows;
// the result is then 0.
func sum(value []byte, exists bool, delta int64) (int64, error) {
	if !exists {
		return delta, nil
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return 0, ErrNotNumber
	}
	if delta > 0 && n > math.MaxInt64-delta || delta < 0 && n < math.MinInt64-delta {
		return 0, fmt.Errorf("%w: %d and %d", ErrNotNumber, n, delta)
	}
	return n + delta, nil
}
