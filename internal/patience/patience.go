// Package patience keeps tests of blocking calls from waiting for ever: where
// an implementation is broken, a suite shall say which promise it broke, and go
// on to the next test.
//
// [Start] and [Finish] bound one call that a test makes on the side. A
// [Watchdog] bounds a whole test, with the calls that it makes itself.
package patience

import (
	"testing"
	"time"
)

// Limit is how long one call may take that is over in seconds on the slowest
// machine. What takes longer is taken to be blocked for good.
const Limit = 30 * time.Second

// Start runs f on the side; its result is for [Finish].
func Start[T any](f func() T) <-chan T {
	ch := make(chan T, 1)
	go func() { ch <- f() }()
	return ch
}

// Finish waits for a value and returns it. It ends the test, as FailNow does,
// where none has come within [Limit].
func Finish[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	return FinishWithin(t, Limit, ch)
}

// FinishWithin is Finish with a limit of its own, for what takes longer than one call.
func FinishWithin[T any](t testing.TB, limit time.Duration, ch <-chan T) T {
	t.Helper()
	blocked := time.NewTimer(limit)
	defer blocked.Stop()
	select {
	case v := <-ch:
		return v
	case <-blocked.C:
		t.Fatal("still waiting: a call that stays blocked, or a done that is never called")
		panic("unreachable")
	}
}
