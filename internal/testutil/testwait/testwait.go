// Package testwait bounds the blocking calls of tests: where an implementation is broken, the
// test that found it fails, and the next test runs.
//
// [Start] and [Finish] bound one call on a goroutine of its own. A [Watchdog] bounds a whole
// test, including the calls on its own goroutine.
package testwait

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// Limit bounds one call that takes seconds on the slowest machine. A call that takes longer is
// considered blocked forever.
const Limit = 30 * time.Second

// Start calls f on a new goroutine and returns a channel that receives the result of f, for
// [Finish]. The goroutine ends when f returns, even if the result is never received.
func Start[T any](f func() T) <-chan T {
	ch := make(chan T, 1)
	go func() { ch <- f() }()
	return ch
}

// Finish blocks until it receives a value from ch and returns it. If none arrives within [Limit],
// it fails the test, as Fatal does.
func Finish[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	return FinishWithin(t, Limit, ch)
}

// FinishWithin blocks until it receives a value from ch and returns it. If none arrives within
// limit, it fails the test, as Fatal does.
func FinishWithin[T any](t testing.TB, limit time.Duration, ch <-chan T) T {
	t.Helper()
	blocked := time.NewTimer(limit)
	defer blocked.Stop()
	select {
	case v := <-ch:
		return v
	case <-blocked.C:
		t.Fatal("still waiting: a call stays blocked, or a done callback is never called")
		panic("unreachable")
	}
}

// StartBlocked calls f on a new goroutine, like [Start], and returns the channel for its result
// once f is blocked within the method with that name. It fails the test, as Fatal does, if f
// returns before that, or does not block there within [Limit].
//
// It reads the stack of the goroutine, since nothing else distinguishes a call that is blocked from
// one that has not begun.
func StartBlocked[T any](t testing.TB, method string, f func() T) <-chan T {
	t.Helper()
	name := make(chan string, 1)
	result := Start(func() T {
		name <- goroutine()
		return f()
	})
	caller := <-name
	for begin := time.Now(); time.Since(begin) < Limit; runtime.Gosched() {
		if len(result) > 0 {
			t.Fatalf("%s returns where it should block", method)
		}
		state, calls := stackOf(caller)
		blocked := state != "" && !strings.HasPrefix(state, "run") && !strings.HasPrefix(state, "syscall")
		if blocked && strings.Contains(calls, "."+method+"(") {
			return result
		}
	}
	t.Fatalf("%s never blocks in %s", caller, method)
	return result
}

// goroutine returns the name of the calling goroutine in stack traces, such as "goroutine 7".
func goroutine() string {
	buf := make([]byte, 64)
	name, _, _ := strings.Cut(string(buf[:runtime.Stack(buf, false)]), " [")
	return name
}

// stackOf returns the state, such as "select", and the text of the stack of the goroutine with that
// name, such as "goroutine 7". Both are "" if the goroutine has ended.
func stackOf(goroutine string) (state, calls string) {
	buf := make([]byte, 64<<10)
	n := runtime.Stack(buf, true)
	for ; n == len(buf); n = runtime.Stack(buf, true) {
		buf = make([]byte, 2*len(buf))
	}
	_, trace, _ := strings.Cut("\n"+string(buf[:n]), "\n"+goroutine+" [")
	trace, _, _ = strings.Cut(trace, "\n\n")
	state, calls, _ = strings.Cut(trace, "]")
	return state, calls
}
