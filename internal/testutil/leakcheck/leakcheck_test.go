package leakcheck

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// leakVar is the environment variable that names the resource that TestVictim leaks.
const leakVar = "LEAKCHECK_TEST_LEAK"

// certain is the environment variable that is set in a process whose leak is certain.
const certain = "LEAKCHECK_TEST_CERTAIN"

func TestMain(m *testing.M) {
	if os.Getenv(certain) != "" {
		settleTimeout = briefly
	}
	Main(m)
}

const briefly = 100 * time.Millisecond

// settleBriefly shortens settleTimeout in this process until the test t ends.
func settleBriefly(t *testing.T) {
	before := settleTimeout
	settleTimeout = briefly
	t.Cleanup(func() { settleTimeout = before })
}

// certainVictim does as victim, for a leak that is certain.
func certainVictim(t *testing.T, leak string) (output string, err error) {
	t.Helper()
	t.Setenv(certain, "1")
	return victim(t, leak)
}

// victim runs TestVictim with args in a process, in which it leaks the resource leak, and returns
// the output of the process, and an error if its exit status is not 0.
func victim(t *testing.T, leak string, args ...string) (output string, err error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"-test.run=^TestVictim$"}, args...)...)
	cmd.Env = append(os.Environ(), leakVar+"="+leak)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestMainPassesCleanTests(t *testing.T) {
	t.Parallel()
	for _, leak := range []string{"nothing", "late goroutine", "collectable descriptor"} {
		t.Run(leak, func(t *testing.T) {
			out, err := victim(t, leak)
			require.NoError(t, err, out)
			require.Contains(t, out, "PASS")
		})
	}
}

func TestMainFindsGoroutine(t *testing.T) {
	out, err := certainVictim(t, "goroutine")
	require.Error(t, err, out)
	require.Contains(t, out, "leakcheck: goroutines")
	require.Contains(t, out, "leakcheck.leakGoroutine")
}

func TestMainKeepsFailure(t *testing.T) {
	t.Parallel()
	out, err := victim(t, "failure and goroutine")
	require.Error(t, err, out)
	require.Contains(t, out, "FAIL")
	require.NotContains(t, out, "leakcheck: goroutines")
}

func TestMainChecksNothingWhenFuzzing(t *testing.T) {
	t.Parallel()
	out, err := victim(t, "nothing", "-test.fuzz=FuzzNothing", "-test.fuzztime=10x", "-test.fuzzcachedir="+t.TempDir())
	require.NoError(t, err, out)
	require.Contains(t, out, "PASS")
	require.NotContains(t, out, "leakcheck:")
}

func FuzzNothing(f *testing.F) {
	f.Add([]byte("x"))
	f.Fuzz(func(*testing.T, []byte) {})
}

// TestVictim leaks the resource that the environment variable leakVar names, and nothing if it is
// not set. Other tests run it in a process of its own.
func TestVictim(t *testing.T) {
	leaks := map[string]func(*testing.T){
		"":                       func(*testing.T) {},
		"nothing":                func(*testing.T) {},
		"goroutine":              func(*testing.T) { leakGoroutine() },
		"late goroutine":         func(*testing.T) { lateGoroutine() },
		"collectable descriptor": leakCollectable,
		"failure and goroutine":  func(t *testing.T) { leakGoroutine(); t.Error("broken") },
		"descriptor":             leakDescriptor,
		"mapping":                leakMapping,
	}
	leak, ok := leaks[os.Getenv(leakVar)]
	require.True(t, ok)
	leak(t)
}

func leakGoroutine() {
	go func() { select {} }()
}

// lateGoroutine starts a goroutine that exits, and releases its descriptors, shortly after
// lateGoroutine has returned.
func lateGoroutine() {
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	go func() {
		defer r.Close()
		_, _ = r.Read(make([]byte, 1))
	}()
	go w.Close()
}

// leakCollectable opens a file and drops it, so that only the garbage collector closes it.
func leakCollectable(t *testing.T) {
	_, err := os.Open(os.Args[0])
	require.NoError(t, err)
}

// recorder is a test that records its errors.
type recorder struct {
	testing.TB
	failed   bool
	cleanups []func()
	errors   []string
}

func (r *recorder) Helper()          {}
func (r *recorder) Failed() bool     { return r.failed }
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func (r *recorder) finish() {
	for _, f := range r.cleanups {
		f()
	}
}

func TestCheckFailsTheTest(t *testing.T) {
	settleBriefly(t)
	stop := make(chan struct{})
	defer close(stop)
	var checked recorder
	Check(&checked)
	go func() { <-stop }()
	checked.finish()
	require.Len(t, checked.errors, 1)
}

func TestCheckIgnoresOlderGoroutines(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	go func() { <-stop }()
	var checked recorder
	Check(&checked)
	checked.finish()
	require.Empty(t, checked.errors)
}

func TestCheckIgnoresFailedTests(t *testing.T) {
	stop := make(chan struct{})
	defer close(stop)
	checked := recorder{failed: true}
	Check(&checked)
	go func() { <-stop }()
	checked.finish()
	require.Empty(t, checked.errors)
}

func TestUsageSince(t *testing.T) {
	before := usage{descriptors: map[string]int{"a": 1, "b": 2}, mapped: map[string]int{"m": 4096}}
	now := usage{descriptors: map[string]int{"a": 3, "b": 1}, mapped: map[string]int{"m": 4096, "n": 8192}}
	require.Equal(t, []string{"descriptors: 2 more of a", "mapped bytes: 8192 more of n"}, now.since(before))
	require.Empty(t, before.since(before))
}
