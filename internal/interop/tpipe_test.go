package interop

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// tpipeProgram builds the command tpipe in a temporary directory of the test and returns the path
// of the executable.
func tpipeProgram(t testing.TB) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "tpipe")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, "../../cmd/tpipe").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// tpipe ping gets correct echoes from a C++ peer, for messages of different shapes, and reports as
// many as were requested.
func TestPingChecksPeer(t *testing.T) {
	program := tpipeProgram(t)
	echo := Start(t, "echo", "--listen", "uv://127.0.0.1:0", "--name", "cpp")
	for name, flags := range map[string]string{
		"random":      "-check -count 60 -size 1MiB -seed 3",
		"named":       "-check -count 30 -named",
		"small":       "-check -count 200 -size 9 -payloads 6 -tensors 6",
		"no parts":    "-check -count 20 -payloads 0 -tensors 0",
		"large":       "-check -count 8 -payloads 1 -tensors 1 -size 32MiB -seed 1",
		"fixed shape": "-count 100 -payloads 1 -tensors 2 -size 64KiB",
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"ping", "-to", echo.URL(), "-json"}, strings.Fields(flags)...)
			out, err := exec.Command(program, args...).Output()
			require.NoError(t, err, "%s", out)
			var r struct {
				Asked, Made int
				Bytes       int
				Checked     bool
				Plan        struct{ Dialect, Transport string }
			}
			require.NoError(t, json.Unmarshal(out, &r))
			require.Equal(t, r.Asked, r.Made)
			require.Positive(t, r.Made)
			require.Equal(t, strings.Contains(flags, "-check"), r.Checked)
			if name == "large" {
				require.Greater(t, r.Bytes, 32<<20, "the seed draws no large part")
			}
			require.Equal(t, "compatible", r.Plan.Dialect)
			require.Equal(t, "uv", r.Plan.Transport)
		})
	}
	require.NoError(t, echo.Stop())
}

// A C++ peer gets correct echoes from tpipe echo, for messages of different shapes.
func TestPeerChecksEcho(t *testing.T) {
	echo := startEcho(t, tpipeProgram(t))
	for name, flags := range map[string]string{
		"random":        "--count 60 --seed 1",
		"all targets":   "--count 30 --seed 2 --targets all",
		"no targets":    "--count 30 --seed 3 --targets none",
		"all at once":   "--count 60 --seed 4 --both",
		"empty parts":   "--count 5 --size 0 --payloads 2 --tensors 2",
		"metadata only": "--count 5 --payloads 0 --tensors 0",
		"64 MiB tensor": "--count 2 --size 67108864 --payloads 0 --tensors 1",
		"more channels": "--count 20 --seed 6 --channel basic,mpt_uv,xth",
	} {
		t.Run(name, func(t *testing.T) {
			args := strings.Fields(flags)
			check := Start(t, append([]string{"check", "--to", echo.url}, args...)...)
			require.NoError(t, check.Wait())
			var sums totals
			check.Next(&sums)
			require.Positive(t, sums.Messages)
		})
	}
	echo.stop(t)
}

// tpipeRoutes are the routes that the command line can select.
var tpipeRoutes = map[string]route{
	"shm":            {transport: "shm", channel: "basic"},
	"shm, cma":       {transport: "shm", channel: "cma"},
	"shm, mpt_uv, 2": {transport: "shm", channel: "mpt_uv", lanes: 2},
	"cma":            {transport: "uv", channel: "cma"},
	"mpt_uv, 5":      {transport: "uv", channel: "mpt_uv", lanes: 5},
}

// forTpipe returns tppeer's flags as flags of tpipe, which begin with one hyphen instead of two.
func forTpipe(flags []string) []string {
	var out []string
	for _, f := range flags {
		out = append(out, strings.Replace(f, "--", "-", 1))
	}
	return out
}

func TestPingUsesRoute(t *testing.T) {
	program := tpipeProgram(t)
	for name, r := range tpipeRoutes {
		t.Run(name, func(t *testing.T) {
			r.requireViable(t)
			echo := r.start(t, "echo")
			args := []string{"ping", "-json", "-to", urlOf(t, "uv", strings.Fields(echo.URL())), "-check", "-count", "40", "-size", "3MiB", "-seed", "1"}
			out, err := exec.Command(program, append(args, forTpipe(r.flags())...)...).Output()
			require.NoError(t, err, "%s", out)
			var got struct {
				Made int
				Plan pipe.Plan
			}
			require.NoError(t, json.Unmarshal(out, &got))
			require.Equal(t, 40, got.Made)
			r.requirePlan(t, &got.Plan)
			require.NoError(t, echo.Stop())
		})
	}
}

// tpipe echo and a C++ peer exchange messages over each route when both have only its transport and
// channel, so that no other path is possible.
func TestEchoUsesRoute(t *testing.T) {
	program := tpipeProgram(t)
	for name, r := range tpipeRoutes {
		t.Run(name, func(t *testing.T) {
			r.requireViable(t)
			only := append(r.flags(), "--transport", r.transport, "--channel", r.channel)
			listen := r.urls()[len(r.urls())-1]
			echo := startEcho(t, program, append(forTpipe(only), "-listen", listen)...)
			check := Start(t, slices.Concat([]string{"check", "--to", echo.url}, only, Shape{Seed: 24}.flags(40))...)
			require.NoError(t, check.Wait())
			for line := range strings.Lines(echo.end(t)) {
				require.Contains(t, line, pipe.ErrPeerLost.Error())
				require.Equal(t, "cma", r.channel, "see requireClosed: %s", line)
			}
		})
	}
}

// goEcho is a running tpipe echo.
type goEcho struct {
	cmd    *exec.Cmd
	url    string
	stderr *lines
}

func startEcho(t testing.TB, program string, flags ...string) *goEcho {
	t.Helper()
	e := &goEcho{cmd: exec.Command(program, append([]string{"echo"}, flags...)...), stderr: newLines()}
	e.cmd.Stderr = e.stderr
	stdout, err := e.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, e.cmd.Start())
	late := time.AfterFunc(maxWait, func() { _ = e.cmd.Process.Kill() })
	t.Cleanup(func() {
		late.Stop()
		if e.cmd.ProcessState == nil {
			_ = e.cmd.Process.Kill()
			_ = e.cmd.Wait()
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	url, found := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	require.True(t, found, line)
	e.url = url
	return e
}

// stop ends the process with SIGTERM, and fails the test unless it exits with status 0 and has
// printed nothing to standard error.
func (e *goEcho) stop(t *testing.T) {
	t.Helper()
	require.Empty(t, e.end(t))
}

// end ends the process with SIGTERM and returns what remains of its standard error. It fails the
// test unless the exit status is 0.
func (e *goEcho) end(t *testing.T) string {
	t.Helper()
	require.NoError(t, e.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, e.cmd.Wait())
	return e.stderr.remaining()
}

// BenchmarkPing measures round trips of tpipe ping to tpipe echo and to the C++ echo alternately,
// so that both run under the same conditions, and reports the medians of all pairs:
//
//	go test -run '^$' -bench Ping -benchtime 5x ./internal/interop
func BenchmarkPing(b *testing.B) {
	program := tpipeProgram(b)
	ours, cpp := startEcho(b, program), Start(b, "echo", "--listen", "uv://127.0.0.1:0")
	for _, c := range []struct{ name, flags string }{
		{"empty_message", "-tensors 0 -count 5000"},
		{"tensor_8B", "-named -size 8 -count 5000"},
		{"tensor_8B_device_open", "-size 8 -count 3000"},
		{"tensor_64KiB", "-named -size 64KiB -count 3000"},
		{"tensor_1MiB", "-named -size 1MiB -count 500"},
		{"tensor_16MiB", "-named -size 16MiB -count 40"},
		{"tensor_64MiB", "-named -size 64MiB -count 12"},
	} {
		b.Run(c.name, func(b *testing.B) {
			var go2go, go2cpp, ratio []float64
			for b.Loop() {
				g := pingMedian(b, program, ours.url, c.flags)
				p := pingMedian(b, program, cpp.URL(), c.flags)
				go2go, go2cpp, ratio = append(go2go, g), append(go2cpp, p), append(ratio, p/g)
			}
			b.ReportMetric(median(go2go), "us/go")
			b.ReportMetric(median(go2cpp), "us/cpp")
			b.ReportMetric(median(ratio), "cpp/go")
			b.ReportMetric(0, "ns/op") // the time of a pair is not a result
		})
	}
}

// pingMedian runs the ping command of program to url with the given flags, separated by spaces, and
// returns the median of its round trip times in microseconds.
func pingMedian(b *testing.B, program, url, flags string) float64 {
	b.Helper()
	args := append([]string{"ping", "-json", "-to", url}, strings.Fields(flags)...)
	out, err := exec.Command(program, args...).Output()
	require.NoError(b, err, "%s", out)
	var r struct {
		Latency struct{ P50 float64 } `json:"latency_us"`
	}
	require.NoError(b, json.Unmarshal(out, &r))
	return r.Latency.P50
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
