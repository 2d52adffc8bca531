package store

import (
	"context"
	"errors"
	"net"
	"strconv"
)

// Causes of an [*Error]. Match them with errors.Is.
var (
	// ErrClosed: this process closed the store or the Watcher. It is the same
	// value as net.ErrClosed.
	ErrClosed = net.ErrClosed

	// ErrTimeout: the deadline of the call's context has passed. Such an error
	// matches context.DeadlineExceeded too.
	ErrTimeout = errors.New("timed out")

	// ErrNotFound: there is no such key.
	ErrNotFound = errors.New("no such key")

	// ErrNotNumber: Add found something else than a decimal number of 64 bits,
	// or would have made a larger one.
	ErrNotNumber = errors.New("not a number of 64 bits")

	// ErrLimit: a key, a value or the store would become larger than its Limits
	// allow.
	ErrLimit = errors.New("limit exceeded")

	// ErrDisconnected: the server closed the connection. One that has stopped
	// does that, and so does one that is asked for what it cannot or will not
	// do: the protocol has no other way to say so. The next call connects anew.
	ErrDisconnected = errors.New("the server closed the connection")

	// ErrProtocol: the peer sent something that the protocol does not allow.
	ErrProtocol = errors.New("peer broke the protocol")

	// ErrDialect: the peer speaks the protocol of PyTorch 2, and this is a
	// server for that of version 1.13.
	ErrDialect = errors.New("peer speaks the TCPStore protocol of PyTorch 2: only that of 1.13 is understood")

	// ErrCorrupt: a file is not one that this package wrote, or has been damaged.
	ErrCorrupt = errors.New("not a store, or damaged")

	// ErrURL: a URL, or the environment that it refers to, does not say where
	// the store is; the text says what is missing.
	ErrURL = errors.New("bad url")
)

// Error says which operation failed, and on what.
type Error struct {
	Op  string // the method: "get", "wait" ...
	Key string // the key, or else the address, file or URL
	Err error  // the cause
}

func (e *Error) Error() string {
	return "store: " + e.Op + " " + strconv.Quote(e.Key) + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ended is the cause of a call that ended with its context.
type ended struct{ err error }

func (e ended) Error() string {
	if e.Is(ErrTimeout) {
		return "timed out: " + e.err.Error()
	}
	return e.err.Error()
}

func (e ended) Unwrap() error { return e.err }

func (e ended) Is(target error) bool {
	return target == ErrTimeout && errors.Is(e.err, context.DeadlineExceeded)
}

// fail wraps the cause of a failed call, once; nil stays nil.
func fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	if inner, ok := err.(*Error); ok {
		err = inner.Err
	}
	if err == context.Canceled || err == context.DeadlineExceeded {
		err = ended{err}
	}
	return &Error{Op: op, Key: key, Err: err}
}
