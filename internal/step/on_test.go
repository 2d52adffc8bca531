//go:build invariants

package step

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlan(t *testing.T) {
	require.Equal(t, plan{}, read(""))
	require.Equal(t, plan{}, read("soon"))
	require.Equal(t, plan{counts: true}, read("0"))
	require.Equal(t, plan{counts: true, fatal: 7}, read("7"))
}

// A process that is to die at its third point comes by two.
func TestDeath(t *testing.T) {
	const childVar = "STEP_TEST_CHILD"
	if os.Getenv(childVar) != "" {
		for range 3 {
			Here()
			os.Stdout.WriteString("lives ")
		}
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestDeath$")
	cmd.Env = append(os.Environ(), childVar+"=1", Variable+"=3")
	out, err := cmd.Output()
	require.Equal(t, 2, strings.Count(string(out), "lives"))
	var ended *exec.ExitError
	require.ErrorAs(t, err, &ended)
	require.Equal(t, syscall.SIGKILL, ended.Sys().(syscall.WaitStatus).Signal())
}
