package patience

import (
	"runtime"
	"strings"
	"testing"
	"time"
)

// StartBlocked is [Start] for a call that must block: it returns once f waits within
// the named method. It ends the test, as FailNow does, where f returns before that, or
// does not get there within [Limit].
//
// Only the stack of its goroutine distinguishes a call that waits from one that has not
// begun.
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
		waits := state != "" && !strings.HasPrefix(state, "run") && !strings.HasPrefix(state, "syscall")
		if waits && strings.Contains(calls, "."+method+"(") {
			return result
		}
	}
	t.Fatalf("%s never waits in %s", caller, method)
	return result
}

// goroutine is the name of the calling goroutine in stacks, as in "goroutine 7".
func goroutine() string {
	head := make([]byte, 64)
	name, _, _ := strings.Cut(string(head[:runtime.Stack(head, false)]), " [")
	return name
}

// stackOf returns the state of a goroutine, as in "select", and its calls.
func stackOf(goroutine string) (state, calls string) {
	all := make([]byte, 64<<10)
	n := runtime.Stack(all, true)
	for ; n == len(all); n = runtime.Stack(all, true) {
		all = make([]byte, 2*len(all))
	}
	_, rest, _ := strings.Cut("\n"+string(all[:n]), "\n"+goroutine+" [")
	rest, _, _ = strings.Cut(rest, "\n\n")
	state, calls, _ = strings.Cut(rest, "]")
	return state, calls
}
