package testwait

import (
	"io"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// failingTB is a test that may fail without ending.
type failingTB struct {
	testing.TB
	failed bool
}

func (*failingTB) Helper()        {}
func (d *failingTB) Fatal(...any) { d.failed = true }

func TestWaitIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		busyAtFirst := func() time.Duration { return min(time.Since(begin), 3*window) }
		waitIdle(t, busyAtFirst)
		require.Equal(t, 4*window, time.Since(begin))

		d := &failingTB{TB: t}
		waitIdle(d, func() time.Duration { return time.Since(begin) / 2 })
		require.True(t, d.failed)
	})
}

// CPUShare returns the first measurement below the argument enough or, if there is none in ten, the
// smallest one.
func TestCPUShare(t *testing.T) {
	for _, c := range []struct {
		shares       []float64 // of each measurement
		want         float64
		measurements int
	}{
		{[]float64{0.001, 1, 1}, 0.001, 1},
		{[]float64{0.5, 0.001, 1}, 0.001, 2},
		{append([]float64{0.5, 0.25}, slices.Repeat([]float64{0.75}, maxMeasurements-2)...), 0.25, maxMeasurements},
	} {
		synctest.Test(t, func(t *testing.T) {
			const over = 2 * time.Second
			begin := time.Now()
			got := cpuShare(over, 0.01, func() (used time.Duration) {
				for _, share := range c.shares[:time.Since(begin)/over] {
					used += time.Duration(share * float64(over))
				}
				return used
			})
			require.InDelta(t, c.want, got, 1e-9)
			require.Equal(t, time.Duration(c.measurements)*over, time.Since(begin))
		})
	}
}

// The CPU time grows while the process works, and WaitIdle returns when it does not grow any more.
func TestCPUTime(t *testing.T) {
	before := cpuTime()
	for cpuTime() == before {
		runtime.Gosched()
	}
	WaitIdle(t)
}

// After StopProcess a process does not reply until it gets SIGCONT.
func TestStopProcess(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	StopProcess(t, cmd.Process)
	answer := Start(func() error {
		_, err := out.Read(make([]byte, 1))
		return err
	})
	_, err = io.WriteString(in, "x")
	require.NoError(t, err)
	WaitIdle(t) // long enough for an answer
	require.Empty(t, answer)
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	require.NoError(t, Finish(t, answer))
}
