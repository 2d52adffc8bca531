// Package subprocess runs tests that change their process irrevocably, such as by a lower
// resource limit or a seccomp filter, each in a process of its own.
package subprocess

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// variable is the environment variable that names the only test of a process.
const variable = "TENSORPIPE_TEST_SUBPROCESS"

// InChild runs the calling test t in a child process. In the child it returns true, and the test
// does its work. In the parent it calls each setUp with t and the command of the child, runs the
// child until it has exited, and returns false if the test passed there. If the test failed or was
// skipped in the child, InChild fails or skips t in the parent and does not return.
func InChild(t *testing.T, setUp ...func(*testing.T, *exec.Cmd)) bool {
	t.Helper()
	if os.Getenv(variable) == t.Name() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
	// Without the option the race detector delays the exit of a process by a second.
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
		t.Fatalf("the test did not run in the child\n%s", out)
	}
	return false
}
