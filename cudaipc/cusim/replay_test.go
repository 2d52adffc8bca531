package cusim

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// replayProgram returns the path of the program in src/replay, built with further options of the
// compiler. It skips t if there is no compiler, or if the compiler lacks the options. A warning fails
// t.
func replayProgram(t *testing.T, options ...string) string {
	t.Helper()
	Library(t)
	options = append(options, "-Werror")
	checkOptions(t, options)
	file, err := program{name: "replay", flags: options, replay: true}.build("")
	require.NoError(t, err)
	return file
}

// checkOptions skips t if a program that is compiled with the options does not run.
func checkOptions(t *testing.T, options []string) {
	t.Helper()
	compiler, err := findCompiler()
	require.NoError(t, err)
	source := filepath.Join(t.TempDir(), "empty.c")
	file := strings.TrimSuffix(source, ".c")
	require.NoError(t, os.WriteFile(source, []byte("int main(void) { return 0; }\n"), 0o600))
	args := slices.Concat(compiler[1:], options, []string{"-o", file, source})
	if out, err := exec.Command(compiler[0], args...).CombinedOutput(); err != nil {
		t.Skipf("the compiler lacks %v: %v\n%s", options, err, out)
	}
	if out, err := exec.Command(file).CombinedOutput(); err != nil {
		t.Skipf("programs built with %v do not run here: %v\n%s", options, err, out)
	}
}

// replay runs a scenario of the program with further variables of the environment, and returns its
// output. The error is that of the process.
func replay(t *testing.T, file, scenario string, env ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testwait.Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, file, scenario)
	cmd.Env = append(os.Environ(), env...)
	// Without the second option each process ends a second late.
	cmd.Env = append(cmd.Env, "TSAN_OPTIONS=halt_on_error=1 atexit_sleep_ms=0")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	require.NoError(t, ctx.Err(), out.String())
	return out.String(), err
}

func TestReplay(t *testing.T) { replayAll(t, nil) }

func TestReplayAddressSanitizer(t *testing.T) {
	replayAll(t, nil, "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
}

func TestReplayThreadSanitizer(t *testing.T) {
	const missingWaits = "a missing wait is a data race"
	replayAll(t, map[string]string{"late": missingWaits, "drop": missingWaits}, "-fsanitize=thread")
}

// replayAll runs all scenarios of the program, built with further options of the compiler, except
// those in the table skip, which has the reasons.
func replayAll(t *testing.T, skip map[string]string, options ...string) {
	file := replayProgram(t, options...)
	list, err := exec.Command(file).Output()
	require.NoError(t, err)
	scenarios := strings.Fields(string(list))
	require.NotEmpty(t, scenarios)
	for name := range skip {
		require.Contains(t, scenarios, name)
	}
	for _, name := range scenarios {
		t.Run(name, func(t *testing.T) {
			if reason := skip[name]; reason != "" {
				t.Skip(reason)
			}
			out, err := replay(t, file, name)
			require.NoError(t, err, out)
		})
	}
}

// Each numbered call of the chain is in the trace, and dropping it gives wrong bytes.
func TestDropEachCall(t *testing.T) {
	file := replayProgram(t)
	trace := filepath.Join(t.TempDir(), "trace")
	const late = "CUSIM_DELAY_US=20000"
	out, err := replay(t, file, "chain", late, "CUSIM_TRACE="+trace, "CUSIM_PROCESS=p")
	require.NoError(t, err, out)
	text, err := os.ReadFile(trace)
	require.NoError(t, err)
	calls := strings.Split(strings.TrimSpace(string(text)), "\n")
	require.Equal(t, []string{"p record s1 1", "p wait s2 1", "p record s2 1", "p wait s1 1"}, calls)
	for _, call := range calls {
		t.Run(call, func(t *testing.T) {
			out, err := replay(t, file, "chain", late, "CUSIM_PROCESS=p", "CUSIM_DROP="+call)
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, out)
			require.Contains(t, out, "run_chain(3) == 0 is false")

			out, err = replay(t, file, "chain", late, "CUSIM_PROCESS=q", "CUSIM_DROP="+call)
			require.NoError(t, err, "it drops a call of another process: %s", out)
		})
	}
}

func TestEnvironment(t *testing.T) {
	file := replayProgram(t)
	device := func(indices ...string) (lines string) {
		for _, i := range indices {
			lines += "Simulated GPU " + i + " simgpu\n"
		}
		return lines
	}
	for _, c := range []struct {
		env  []string
		want string
	}{
		{nil, device("0", "1", "2", "3")},
		{[]string{"CUSIM_DEVICES=2"}, device("0", "1")},
		{[]string{"CUDA_VISIBLE_DEVICES=3,1"}, device("3", "1")},
		{[]string{"CUDA_VISIBLE_DEVICES=1,9,2"}, device("1")},
		{[]string{"CUSIM_MIG=1", "CUDA_VISIBLE_DEVICES=2,3"}, "Simulated GPU 2 simmig\n"},
	} {
		t.Run(strings.Join(c.env, " "), func(t *testing.T) {
			out, err := replay(t, file, "visible", c.env...)
			require.NoError(t, err, out)
			require.Equal(t, c.want, out)
		})
	}
	for _, variable := range []string{"CUDA_VISIBLE_DEVICES=", "CUSIM_DEVICES=0", "CUSIM_NO_DEVICE=1"} {
		out, err := replay(t, file, "visible", variable)
		require.Error(t, err)
		require.Contains(t, out, "cuInit(0) is 100", variable)
	}
	out, err := replay(t, file, "visible", "CUSIM_DEVICES=many")
	require.Error(t, err)
	require.Contains(t, out, "cusim: CUSIM_DEVICES=many is invalid")
	out, err = replay(t, file, "held", "CUSIM_HOLD=1")
	require.NoError(t, err, out)
}
