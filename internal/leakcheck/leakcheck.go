// Package leakcheck fails tests that leave something behind: goroutines, file
// descriptors, or mappings of files and shared memory. Memory on the heap is
// the garbage collector's business and is not looked at.
//
// Every test package calls [Main] from its TestMain; a test that wants the
// blame to fall on itself calls [Check] first thing.
//
// What is left is compared with what was there at the start, so standard
// streams and descriptors inherited from a parent do not count. Closing may
// lag behind the end of a test (a goroutine on its way out, a handle that the
// garbage collector closes), so a leak is reported only if it is still there
// after some seconds of collecting and looking again.
package leakcheck

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of a package and exits, with an error if they passed but
// left something behind. It is the body of a TestMain.
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

// Check fails t if, after all cleanups registered later than this call, more
// is open than now. It says nothing about a test that failed anyway. It cannot
// tell tests apart that run in parallel.
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

// fuzzing reports whether this process is part of a fuzzing run, whose
// machinery keeps pipes and shared memory of its own.
func fuzzing() bool {
	for _, name := range []string{"test.fuzz", "test.fuzzworker"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != f.DefValue {
			return true
		}
	}
	return false
}

// Baseline is what there was at some time.
type Baseline struct {
	goroutines goleak.Option
	resources  usage
}

// Begin notes what there is now, for a test that looks more than once.
func Begin() Baseline {
	wakePoller()
	return Baseline{goroutines: goleak.IgnoreCurrent(), resources: inUse()}
}

// Leaks lists what there is beyond b. It waits for what is on its way out.
func (b Baseline) Leaks() []string {
	return settle(func() []string {
		var out []string
		if err := goleak.Find(b.goroutines); err != nil {
			out = append(out, "goroutines: "+err.Error())
		}
		return append(out, inUse().since(b.resources)...)
	})
}

// wakePoller makes the runtime open its epoll descriptor and the eventfd that
// interrupts it. Both appear at the first use of a pollable file and stay for
// good; opened before counting they need no exception, and a leaked epoll or
// eventfd of the tests still shows.
func wakePoller() {
	r, w, err := os.Pipe()
	if err != nil {
		return
	}
	_ = r.Close()
	_ = w.Close()
}
