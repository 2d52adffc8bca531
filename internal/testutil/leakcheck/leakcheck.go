// Package leakcheck fails tests that leak goroutines, file descriptors, or mappings of files and
// shared memory. Heap memory is not checked.
//
// Every test package calls [Main] from its TestMain. A test calls [Check] first to have its own
// leaks reported as its failure.
//
// Leaks are counted from the start, so standard streams and inherited descriptors are no leaks.
// Resources may be released some time after a test ends, by a goroutine that is about to exit or by
// the garbage collector. Hence a leak is reported only if it remains after some seconds of repeated
// collections.
package leakcheck

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of a package and exits; it is the body of a TestMain. If the tests passed but
// leaked, it prints the leaks and the exit status is 1.
func Main(m *testing.M) {
	start := Begin()
	code := m.Run()
	if code == 0 && !fuzzing() {
		for _, leak := range start.Leaks() {
			fmt.Fprintln(os.Stderr, "leakcheck:", leak)
			code = 1
		}
	}
	os.Exit(code)
}

// Check fails t if, after all cleanups that t registers later, more resources are open than at the call
// of Check. A test that has failed is not checked. A leak of one of several parallel tests is reported
// for each of them.
func Check(t testing.TB) {
	t.Helper()
	start := Begin()
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		for _, leak := range start.Leaks() {
			t.Errorf("leakcheck: %s", leak)
		}
	})
}

// fuzzing reports whether this process is part of a fuzzing run, for which package testing opens
// pipes and shared memory.
func fuzzing() bool {
	for _, name := range []string{"test.fuzz", "test.fuzzworker"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != f.DefValue {
			return true
		}
	}
	return false
}

// Baseline is the set of goroutines, descriptors and mappings that were open at one moment.
type Baseline struct {
	goroutines goleak.Option
	resources  usage
}

// Begin returns the resources that are open now. Callers that check more than once call Leaks on the
// result.
func Begin() Baseline {
	wakePoller()
	return Baseline{goroutines: goleak.IgnoreCurrent(), resources: inUse()}
}

// Leaks returns a line for each kind of resource of which more are open than in b; none if nothing
// leaked. It waits some seconds for resources that are about to be released.
func (b Baseline) Leaks() []string {
	return settle(func() []string {
		var out []string
		if err := goleak.Find(b.goroutines); err != nil {
			out = append(out, "goroutines: "+err.Error())
		}
		return append(out, inUse().since(b.resources)...)
	})
}

// wakePoller makes the runtime open its epoll descriptor and the eventfd that interrupts it, which it
// opens at the first use of a pollable file and keeps. Opened before counting, they need no exception,
// and a leaked epoll descriptor or eventfd is still found.
func wakePoller() {
	r, w, err := os.Pipe()
	if err != nil {
		return
	}
	_ = r.Close()
	_ = w.Close()
}
