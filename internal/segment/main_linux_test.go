package segment_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

// peerVar is the environment variable with the role of a child process.
const peerVar = "SEGMENT_TEST_PEER"

// raceOptions makes the race detector end a process at once, and not after a second.
const raceOptions = "GORACE=atexit_sleep_ms=0"

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

// peer returns a command, not started yet, that runs this test binary in the role name. The child's
// descriptors from 3 on are the files. It is killed when the test ends.
func peer(t testing.TB, name string, files ...*os.File) *exec.Cmd {
	t.Helper()
	require.Contains(t, peers, name)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), peerVar+"="+name, raceOptions)
	cmd.ExtraFiles = files
	cmd.Stderr = os.Stderr
	return cmd
}
