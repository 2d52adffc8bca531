package segment_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/leakcheck"
)

// peerVar tells a process which peer of a test it is.
const peerVar = "SEGMENT_TEST_PEER"

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
