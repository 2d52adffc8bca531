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

// Start calls f on a new goroutine and returns a channel that receives its result, for [Finish].
func Start[T any](f func() T) <-chan T {
	ch := make(chan T, 1)
	go func() { ch <- f() }()
	return ch
}

// Finish blocks until ch has a value and returns it. If none arrives within [Limit] it ends the test,
// as Fatal does.
func Finish[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	return FinishWithin(t, Limit, ch)
}

// FinishWithin is Finish with another limit, for values that need more than one call.
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

// StartBlocked is [Start] for a call that must block: it returns after f has blocked within the method
// of that name. It ends the test, as Fatal does, if f returns before, or does not block within [Limit].
//
// It reads the stack of the goroutine, since nothing else distinguishes a call that is blocked from one
// that has not begun.
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

// stackOf returns the state of the named goroutine, such as "select", and the text of its stack. Both
// are empty if the goroutine has ended.
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
