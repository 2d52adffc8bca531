package drops

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// delays are how long each copy and fill takes, in microseconds. A drop that gives right bytes is tried
// again with the next delay, because a loaded machine may have made up for the missing call.
var delays = []int{8_000, 8_000, 60_000, 60_000, 300_000, 300_000}

// parallel is how many runs there are at a time. Each is idle most of the time.
const parallel = 4

// limit bounds a run. That of all scenarios takes longest.
const limit = 10 * time.Minute

// result is the outcome of a run.
type result struct {
	failed bool
	output string
	calls  []string          // sorted
	sites  map[string]string // of the calls that have one
}

// begin starts a process that runs the tests that match the pattern, with these options of the simulator,
// and returns a function that waits for it.
func begin(t *testing.T, pattern string, with map[string]string) (wait func() result) {
	t.Helper()
	trace := filepath.Join(t.TempDir(), "trace")
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.v", "-test.count=1", "-test.run="+pattern)
	// Garbage collections make calls at any time, to free memory.
	cmd.Env = append(os.Environ(), "GOGC=off", "GORACE=atexit_sleep_ms=0", "CUSIM_TRACE="+trace, allVar+"=")
	for name, value := range with {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() result {
		defer cancel()
		err := cmd.Wait()
		text, _ := os.ReadFile(trace) // there is none without a call
		r := result{failed: err != nil, output: output.String(), sites: map[string]string{}}
		for line := range strings.Lines(string(text)) {
			call, site, found := strings.Cut(strings.TrimSpace(line), "\t")
			r.calls = append(r.calls, call)
			if found {
				r.sites[call] = site
			}
		}
		slices.Sort(r.calls)
		return r
	}
}

// pattern returns a pattern for the option -test.run that matches only the test with that name.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// options returns the options of a try.
func options(try int) map[string]string {
	return map[string]string{"CUSIM_DELAY_US": fmt.Sprint(delays[try]), tryVar: fmt.Sprint(try)}
}

// tryVar is the environment variable with the try, in a run.
const tryVar = "TENSORPIPE_DROPS_TRY"

// Running reports whether this process is a run of a scenario.
func Running() bool { return os.Getenv(tryVar) != "" }

// Pick returns less in a run, and normal in other processes.
func Pick[T any](normal, less T) T {
	if Running() {
		return less
	}
	return normal
}

// Try returns 0 in a run, and more in one that tries a drop again which gave right bytes. A test may use it to
// do its work in another order, with the same calls.
func Try() int {
	n, _ := strconv.Atoi(os.Getenv(tryVar))
	return n
}

// traced runs the scenario with that name twice without a drop. It returns the calls that both runs have
// made, and whether these are all. t fails if a run fails.
func traced(t *testing.T, name string) (calls []string, equal bool) {
	t.Helper()
	var runs [2]result
	for i := range runs {
		runs[i] = begin(t, pattern(name), options(0))()
		if runs[i].failed {
			t.Fatalf("%s fails without a drop:\n%s", name, tail(runs[i].output))
		}
	}
	both := slices.DeleteFunc(slices.Clone(runs[0].calls), func(call string) bool {
		_, found := slices.BinarySearch(runs[1].calls, call)
		return !found
	})
	return both, slices.Equal(runs[0].calls, runs[1].calls)
}

// passes runs a scenario without a drop as in that try, and reports whether it passes. t fails if it has wrong bytes.
// On a loaded machine the late tries may end at a time limit.
func passes(t *testing.T, name string, try int) bool {
	t.Helper()
	r := begin(t, pattern(name), options(try))()
	if r.failed && strings.Contains(r.output, WrongBytes) {
		t.Fatalf("%s has wrong bytes without a drop in try %d:\n%s", name, try, tail(r.output))
	}
	return !r.failed
}

// drop runs a scenario without each of calls, and counts the outcomes in c. It returns the calls without
// which the bytes were right, and adds their sites to sites. A run in which the call was not made is not counted.
func (c *Count) drop(t *testing.T, name string, calls []string, try int, sites map[string]string) (right []string) {
	t.Helper()
	running := make(map[string]func() result)
	for i := range len(calls) + parallel {
		if i < len(calls) {
			with := options(try)
			with["CUSIM_DROP"] = calls[i]
			running[calls[i]] = begin(t, pattern(name), with)
		}
		if i < parallel || i-parallel >= len(calls) {
			continue
		}
		call := calls[i-parallel]
		r := running[call]()
		delete(running, call)
		_, made := slices.BinarySearch(r.calls, call)
		switch {
		case made && r.failed && strings.Contains(r.output, WrongBytes):
			c.Caught++
		case try > 0: // right without the call in an earlier try
			right = append(right, call)
		case !made:
			c.NotMade++
		case !r.failed:
			right = append(right, call)
			sites[call] = r.sites[call]
		default:
			c.Otherwise++
			t.Logf("%s: another failure without %q:\n%s", name, call, tail(r.output))
		}
	}
	return right
}

// tail returns the beginning of a text, without empty lines.
func tail(text string) string {
	lines := slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
		return strings.TrimSpace(line) == "" || strings.HasPrefix(strings.TrimSpace(line), "=== ")
	})
	for i, line := range lines {
		lines[i] = line[:min(len(line), 200)]
	}
	return strings.Join(lines[:min(len(lines), 12)], "\n")
}
