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

	"github.com/tensorpipe-go/tensorpipe/internal/step"
)

// A process is killed where it has moved a ring on, or is about to, and before and
// after what it asks the system for: see internal/step.
func TestKilledAtSteps(t *testing.T) {
	onAllWays(t, atStep, 15)
}

// atStep lets a child die at the n-th step, see internal/step.
func atStep(t *testing.T, part string, n int) *mortal {
	t.Helper()
	m := newMortal()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = environment(part, fmt.Sprintf("%s=%d", step.Variable, n))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	stayDumpable(t)
	go func() {
		m.hear(out)
		err := cmd.Wait()
		e := ending{at: time.Now(), where: "step", err: err}
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		e.killed = status.Signaled() && status.Signal() == syscall.SIGKILL
		if said, ok := m.hasSaid(steps); ok {
			e.points, _ = strconv.Atoi(said)
		}
		m.ended <- e
	}()
	return m
}
