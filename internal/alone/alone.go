// Package alone is for tests that spoil the process that they run in: what a limit or
// a filter takes from a process it does not get back. Each runs in one of its own.
package alone

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// variable in the environment of a process is the test that it runs alone.
const variable = "TENSORPIPE_TEST_ALONE"

// Here reports whether this process runs the calling test and nothing else. If not, it
// runs the test in one that does, which the functions have set up, and has the calling
// test fail, or skip, as it did there.
func Here(t *testing.T, setUp ...func(*testing.T, *exec.Cmd)) bool {
	t.Helper()
	if os.Getenv(variable) == t.Name() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
	// The race detector ends a process at once, and not after a second.
	cmd.Env = append(os.Environ(), variable+"="+t.Name(), "GORACE=atexit_sleep_ms=0")
	for _, f := range setUp {
		f(t, cmd)
	}
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP: "+t.Name()):
		t.Skip(string(out))
	case !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Fatalf("it has not run\n%s", out)
	}
	return false
}
