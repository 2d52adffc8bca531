//go:build invariants

package failpoint

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRead(t *testing.T) {
	require.Equal(t, settings{}, read(""))
	require.Equal(t, settings{}, read("soon"))
	require.Equal(t, settings{enabled: true}, read("0"))
	require.Equal(t, settings{enabled: true, killAt: 7}, read("7"))
}

// A process that is to be killed at its third failpoint passes two failpoints and no more.
func TestKilledAtPoint(t *testing.T) {
	const childVar = "FAILPOINT_TEST_CHILD"
	if os.Getenv(childVar) != "" {
		for range 3 {
			Here()
			os.Stdout.WriteString("passed ")
		}
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledAtPoint$")
	cmd.Env = append(os.Environ(), childVar+"=1", Variable+"=3")
	out, err := cmd.Output()
	require.Equal(t, 2, strings.Count(string(out), "passed"))
	var ended *exec.ExitError
	require.ErrorAs(t, err, &ended)
	require.Equal(t, syscall.SIGKILL, ended.Sys().(syscall.WaitStatus).Signal())
}
