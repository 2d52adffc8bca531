//go:build invariants

package samehost_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/failpoint"
)

// TestKilledAtFailpoints checks that if a process is killed at a failpoint, which is before and
// after it changes a ring or makes a system call, all calls of the other end fail and all resources
// of the other end are released.
func TestKilledAtFailpoints(t *testing.T) {
	onAllRoutes(t, atFailpoint, 15)
}

// atFailpoint starts a child with childArgs that is killed at its n-th failpoint, or at none if n
// is 0. It does not wait for the child's end; the channel ended of the result receives how the
// child ended, with the number of failpoints if the child was not killed.
func atFailpoint(t *testing.T, childArgs string, n int) *killableChild {
	t.Helper()
	m := newKillableChild()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = environment(childArgs, fmt.Sprintf("%s=%d", failpoint.Variable, n))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	restoreDumpable(t)
	go func() {
		m.readOutput(out)
		err := cmd.Wait()
		e := exitInfo{at: time.Now(), where: "failpoint", err: err}
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		e.killed = status.Signaled() && status.Signal() == syscall.SIGKILL
		if text, ok := m.printed(pointsPrefix); ok {
			e.points, _ = strconv.Atoi(text)
		}
		m.ended <- e
	}()
	return m
}
