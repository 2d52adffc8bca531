package transporttest

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/patience"
)

// ownName is what stacks call the goroutine that asks, as in "goroutine 7".
func ownName() string {
	head := make([]byte, 64)
	name, _, _ := strings.Cut(string(head[:runtime.Stack(head, false)]), " [")
	return name
}

// awaitCall returns when a goroutine is in a call of a method and waits there. No
// other sign tells a call that waits from one that has not got so far.
func awaitCall(t *testing.T, goroutine, method string) {
	t.Helper()
	for begin := time.Now(); time.Since(begin) < patience.Limit; runtime.Gosched() {
		state, calls := stackOf(goroutine)
		idle := state != "" && !strings.HasPrefix(state, "run") && !strings.HasPrefix(state, "syscall")
		if idle && strings.Contains(calls, "."+method+"(") {
			return
		}
	}
	t.Fatalf("%s never waits in %s", goroutine, method)
}

// stackOf tells what a goroutine is doing: its state, as in "select", and its calls.
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
