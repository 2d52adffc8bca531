package cudaipc

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/cudaipc/cusim"
	"github.com/tensorpipe-go/tensorpipe/cudaipc/driver"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
)

// runElsewhere runs the compiled tests that the pattern selects in an empty folder, with the environment env only
// and without a C compiler, and returns the output. They must not fail.
func runElsewhere(t *testing.T, pattern string, env ...string) string {
	t.Helper()
	short.Skip(t, "runs the tests again")
	program, err := os.Executable()
	require.NoError(t, err)
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), program, "-test.v", "-test.run", pattern, "-test.skip", "TestBinary")
	cmd.Dir = home
	cmd.Env = append(env, "HOME="+home, "PATH=", "CC=none", "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	lines := strings.Split(string(out), "\n")
	require.NoError(t, err, strings.Join(lines[max(len(lines)-60, 0):], "\n"))
	return string(out)
}

// The compiled tests need no file, no compiler and no GPU: without a driver they are skipped with its reason, and
// those of the simulator with theirs.
func TestBinaryWithoutGPU(t *testing.T) {
	const fast = "Parity$|PTX|Kernel|Load|Copy|Memory|Stream|NoDevice|Frames|FuzzDecodeIPC"
	require.Contains(t, runElsewhere(t, fast), "cusim: no C compiler: CC=none is not installed")
	if _, err := driver.Open(""); err == nil {
		return // this machine has a driver
	}
	out := runElsewhere(t, fast, onGPU+"=1")
	require.Contains(t, out, "driver: CUDA is not viable: the driver's library cannot be loaded: libcuda.so.1")
	require.Contains(t, out, "the test needs the simulated driver")
	require.NotContains(t, out, "cusim: ")
}

// On a machine with one GPU the compiled tests pass or are skipped. The simulator stands in for the installed driver.
func TestBinaryOnOneGPU(t *testing.T) {
	lib := cusim.Library(t)
	const fast = "^(TestParity|TestParityDevices|TestParityDescriptors|TestKind|TestClosedKind|TestNoDevice|" +
		"TestConcurrentUse|TestMisuse|TestWrap|TestLoad.*|TestCopyStages|TestCopyOrder|TestAllocHost|TestEvents.*|TestMatMul)$"
	out := runElsewhere(t, fast, onGPU+"=1", "CUSIM_DEVICES=1", "LD_LIBRARY_PATH="+filepath.Dir(lib))
	require.NotContains(t, out, "cusim: ")
	for _, reason := range []string{"the test needs the simulated driver", "the test needs a second GPU"} {
		require.Contains(t, out, reason)
	}
	for _, ran := range []string{"TestParity", "TestLoadTensors", "TestCopyStages", "TestAllocHost", "TestEventsAreReused", "TestConcurrentUse", "TestMatMul", "TestClosedKind"} {
		require.Contains(t, out, "--- PASS: "+ran+" ")
	}
}
