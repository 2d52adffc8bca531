package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTrainLeavesNoProcess checks that the processes of a training have ended with it.
func TestTrainLeavesNoProcess(t *testing.T) {
	for _, w := range trainJSON(t, "-epochs", "1", "-hidden", "16", "-batch", "300").Workers {
		requireEnded(t, w.PID)
	}
}

// requireEnded waits until there is no process with that id.
func requireEnded(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH }, processTimeout, time.Millisecond)
}

// startTraining starts a training that does not end, and returns it and the process of stage1, once
// the first steps are done.
func startTraining(t *testing.T, args ...string) (p *process, stage *os.Process) {
	t.Helper()
	p = start(t, append([]string{"train", "-epochs", "1000000"}, args...)...)
	var pid int
	require.Eventually(t, func() bool {
		pid = childWith(t, p.cmd.Process.Pid, "stage1")
		return pid != 0
	}, processTimeout, time.Millisecond)
	stage, err := os.FindProcess(pid)
	require.NoError(t, err)
	return p, stage
}

// children returns the processes whose parent has that id, with their command lines.
func children(t *testing.T, parent int) map[int]string {
	t.Helper()
	all := map[int]string{}
	folders, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	for _, folder := range folders {
		stat, err := os.ReadFile(folder + "/stat")
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if line, err := os.ReadFile(folder + "/cmdline"); err == nil && fields[1] == strconv.Itoa(parent) {
			pid, err := strconv.Atoi(filepath.Base(folder))
			require.NoError(t, err)
			all[pid] = strings.ReplaceAll(string(line), "\x00", " ")
		}
	}
	return all
}

// childWith returns the id of the child of parent whose command line has the word, or 0.
func childWith(t *testing.T, parent int, word string) int {
	t.Helper()
	for pid, line := range children(t, parent) {
		if strings.Contains(line, " "+word+" ") {
			return pid
		}
	}
	return 0
}

// TestTrainKilledStage checks that the death of a stage ends the training with an error that names it, and
// that no process is left.
func TestTrainKilledStage(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			p, stage := startTraining(t, "-transport", transport, "-hidden", "8", "-batch", "1437")
			p.lineWith("epoch")
			all := children(t, p.cmd.Process.Pid)
			require.Len(t, all, 2)
			require.NoError(t, stage.Kill())
			_, stderr, code := p.wait()
			require.Equal(t, exitFailed, code, stderr)
			require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
			require.Contains(t, stderr, "stage1")
			for pid := range all {
				requireEnded(t, pid)
			}
		})
	}
}

// TestTrainInterrupted checks that SIGINT, also to all processes as a terminal sends it, ends the training
// with exit code 130, and that no process is left. The death of the trainer ends the stages too.
func TestTrainInterrupted(t *testing.T) {
	for name, signals := range map[string]struct {
		signal syscall.Signal
		all    bool
		code   int
	}{"one": {syscall.SIGINT, false, exitInterrupted}, "all": {syscall.SIGINT, true, exitInterrupted}, "killed": {syscall.SIGKILL, false, -1}} {
		t.Run(name, func(t *testing.T) {
			p, _ := startTraining(t, "-hidden", "8")
			all := children(t, p.cmd.Process.Pid)
			require.Eventually(t, func() bool { all = children(t, p.cmd.Process.Pid); return len(all) == 2 }, processTimeout, time.Millisecond)
			if signals.all {
				p.lineWith("epoch")
				for pid := range all {
					require.NoError(t, syscall.Kill(pid, signals.signal))
				}
			}
			p.signal(signals.signal)
			_, stderr, code := p.wait()
			require.Equal(t, signals.code, code, stderr)
			for pid := range all {
				requireEnded(t, pid)
			}
		})
	}
}

// TestTrainByHandWithoutTrainer checks that stages end with an error when the trainer has been killed.
func TestTrainByHandWithoutTrainer(t *testing.T) {
	flags := []string{"train", "-rendezvous", "file://" + filepath.Join(t.TempDir(), "store")}
	stages := []*process{start(t, append(flags, "-name", "stage0")...), start(t, append(flags, "-name", "stage1")...)}
	p := start(t, append(flags, "-name", "trainer", "-epochs", "1000000", "-hidden", "8")...)
	p.lineWith("epoch")
	p.signal(syscall.SIGKILL)
	for _, s := range stages {
		_, stderr, code := s.wait()
		require.Equal(t, exitFailed, code, stderr)
		require.Contains(t, stderr, "the trainer has gone")
	}
	p.wait()
}
