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

// Main runs the tests of m and exits with their status; it is the body of a TestMain. If the tests
// passed but goroutines, descriptors or mappings are left open, it prints these and exits with
// status 1. It does not check that in a fuzzing run.
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

// Check records the goroutines, descriptors and mappings that are open now. At the end of t, after
// the cleanups that t registers later, it fails t if more are open, unless t has failed already. A
// leak of one of several parallel tests is reported for each of them.
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

// fuzzing reports whether this process takes part in a fuzzing run, in which package testing itself
// opens pipes and shared memory.
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

// Begin returns the goroutines, descriptors and mappings that are open now, with which Leaks
// compares later ones.
func Begin() Baseline {
	wakePoller()
	return Baseline{goroutines: goleak.IgnoreCurrent(), resources: inUse()}
}

// Leaks returns lines for the goroutines, descriptors and mappings that are open now and were not
// when b was made: one line for all goroutines, and one for each file with more descriptors or
// mapped bytes. It returns nil if there are none. It waits some seconds for resources that are
// about to be released, and collects garbage meanwhile. Descriptors and mappings of files whose names
// begin with one of kept are no leaks.
func (b Baseline) Leaks(kept ...string) []string {
	return settle(func() []string {
		var out []string
		if err := goleak.Find(b.goroutines); err != nil {
			out = append(out, "goroutines: "+err.Error())
		}
		return append(out, inUse().without(kept).since(b.resources)...)
	})
}

// wakePoller opens and closes a pipe. At the first use of such a file the Go runtime opens its
// epoll descriptor and an eventfd, and keeps them; after wakePoller they are part of every
// Baseline, and are not reported as leaks.
func wakePoller() {
	r, w, err := os.Pipe()
	if err != nil {
		return
	}
	_ = r.Close()
	_ = w.Close()
}
