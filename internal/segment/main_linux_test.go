package segment_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
)

// peerVar tells a process which peer of a test it is, aloneVar which test it is
// to run alone.
const (
	peerVar  = "SEGMENT_TEST_PEER"
	aloneVar = "SEGMENT_TEST_ALONE"
)

// prompt has the race detector end a process at once, and not after a second.
const prompt = "GORACE=atexit_sleep_ms=0"

func TestMain(m *testing.M) {
	name := os.Getenv(peerVar)
	if name == "" {
		leakcheck.Main(m)
	}
	if err := peers[name](); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// peer prepares this test binary as another process that runs the named peer. It
// has the files as its descriptors from 3 on.
func peer(t testing.TB, name string, files ...*os.File) *exec.Cmd {
	t.Helper()
	require.Contains(t, peers, name)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), peerVar+"="+name, prompt)
	cmd.ExtraFiles = files
	cmd.Stderr = os.Stderr
	return cmd
}

// alone reports whether this process runs the calling test and nothing else, so
// that the test may spoil the process. If not, it runs the test in one that does,
// set up by the given functions.
func alone(t *testing.T, setUp ...func(*testing.T, *exec.Cmd)) bool {
	t.Helper()
	if os.Getenv(aloneVar) == t.Name() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), aloneVar+"="+t.Name(), prompt)
	for _, f := range setUp {
		f(t, cmd)
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	if strings.Contains(string(out), "--- SKIP: "+t.Name()) {
		t.Skip(string(out))
	}
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return false
}
