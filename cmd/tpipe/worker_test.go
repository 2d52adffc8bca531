package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/freeport"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

func TestCallsReachWorkers(t *testing.T) {
	url := "tcp://" + freeport.Addr(t)
	first := start(t, "worker", "-rendezvous", url, "-store")
	require.Equal(t, "ready as worker0 (rank 0)", first.line())
	second := start(t, "worker", "-rendezvous", url, "-name", "second")
	require.Equal(t, "ready as second (rank 1)", second.line())
	for line, want := range map[string]string{
		"-to worker0 aten::add f32:[[1,2],[3,4]] [[10,20],[30,40]] alpha=2": "f32:[[21,42],[63,84]]",
		"-to second aten::mul [1,2,3] 2":                                    "i64:[2,4,6]",
		"-to second aten::reshape [1,2,3,4] ints:[2,2]":                     "i64:[[1,2],[3,4]]",
		"-to worker0 aten::sum [1.5,2]":                                     "f32:3.5",
		"-to worker0 aten::nonzero [0,1,0,1]":                               "i64:[[1],[3]]",
	} {
		stdout, stderr, code := tpipe(t, append([]string{"call", "-rendezvous", url}, strings.Fields(line)...)...)
		require.Zero(t, code, stderr)
		require.Equal(t, want+"\n", stdout, line)
		require.Empty(t, stderr)
	}
	for line, want := range map[string]string{
		"-to worker0 aten::add [1,2] [1,2,3]": "The size of tensor a (2) must match the size of tensor b (3)",
		"-to worker0 aten::fly [1]":           "Cannot find matching operator for schema",
		"-to worker0 fly 1":                   "call fly on worker0: not served: no function of that name",
		"-to nobody aten::neg [1]":            "aten::neg on nobody: no such worker in the group of",
	} {
		stdout, stderr, code := tpipe(t, append([]string{"call", "-rendezvous", url}, strings.Fields(line)...)...)
		require.Equal(t, exitFailed, code, line)
		require.Empty(t, stdout)
		require.Contains(t, stderr, want, line)
	}
	for _, p := range []*process{second, first} { // the first one serves the store
		p.signal(syscall.SIGTERM)
		_, stderr, code := p.wait()
		require.Zero(t, code, stderr)
	}
}

func TestCallOfKilledWorkerFails(t *testing.T) {
	url := "file://" + filepath.Join(t.TempDir(), "store")
	w := start(t, "worker", "-rendezvous", url)
	require.Equal(t, "ready as worker0 (rank 0)", w.line())
	require.NoError(t, w.cmd.Process.Kill())
	w.wait()
	stdout, stderr, code := tpipe(t, "call", "-rendezvous", url, "-to", "worker0", "aten::neg", "[1]")
	require.Equal(t, exitFailed, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "worker0")
	require.Contains(t, stderr, "unreachable")
}

// TestKilledWorkerStartsAgain checks that a worker that was killed gets its rank again if it is
// started with -replace, and fails without. A live worker that is replaced reports that it is not
// in the group any more.
func TestKilledWorkerStartsAgain(t *testing.T) {
	line := []string{"worker", "-rendezvous", "file://" + filepath.Join(t.TempDir(), "store")}
	start(t, line...).lineWith("worker0")
	line = append(line, "-name", "w1")
	w := start(t, line...)
	require.Equal(t, "ready as w1 (rank 1)", w.line())
	w.signal(syscall.SIGKILL)
	w.wait()

	_, stderr, code := tpipe(t, line...)
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "if it has died, remove or replace it")
	again := start(t, append(line, "-replace")...)
	require.Equal(t, "ready as w1 (rank 1)", again.line())
	stdout, stderr, code := tpipe(t, "call", "-rendezvous", line[2], "-to", "w1", "aten::neg", "[1]")
	require.Zero(t, code, stderr)
	require.Equal(t, "i64:[-1]\n", stdout)

	third := start(t, append(line, "-replace")...)
	require.Equal(t, "ready as w1 (rank 1)", third.line())
	again.stderr.await(t, "this worker is not in the group any more")
	again.stop()
	third.stop()
}

// TestKilledCall checks that a tpipe call that is killed while its function runs does not block the
// barriers of the workers, and is removed from the group.
func TestKilledCall(t *testing.T) {
	url := "file://" + filepath.Join(t.TempDir(), "store")
	callers := make(chan agent.WorkerInfo, 1)
	stuck := agent.NewFunc[agent.None, agent.None]("test.stuck")
	join := func(name string) *agent.Agent {
		a, err := agent.Join(t.Context(), agent.Config{
			Name: name, Rank: -1, Rendezvous: url, Logger: slog.New(slog.DiscardHandler),
			Funcs: agent.Funcs{stuck.Serve(func(ctx context.Context, _ agent.None) (agent.None, error) {
				caller, _ := agent.Caller(ctx)
				callers <- caller
				<-ctx.Done()
				return agent.None{}, context.Cause(ctx)
			})},
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, a.Close()) })
		return a
	}
	first, second := join("first"), join("second")
	meet := func() {
		met := testwait.Start(func() error { return second.Barrier(t.Context()) })
		require.NoError(t, first.Barrier(t.Context()))
		require.NoError(t, testwait.Finish(t, met))
	}
	call := start(t, "call", "-rendezvous", url, "-to", "first", "test.stuck")
	caller := testwait.Finish(t, callers)
	meet()
	call.signal(syscall.SIGKILL)
	call.wait()
	meet()
	require.Eventually(t, func() bool {
		_, err := second.Worker(t.Context(), caller.To())
		return errors.Is(err, agent.ErrNoWorker)
	}, processTimeout, pollInterval)
}

func TestWorkersOfOneSize(t *testing.T) {
	url := "tcp://" + freeport.Addr(t)
	line := []string{"worker", "-rendezvous", url, "-world", "2"}
	first := start(t, append(line, "-rank", "0")...)
	second := start(t, append(line, "-rank", "1", "-name", "other")...)
	require.Equal(t, "ready as worker0 (rank 0)", first.line())
	require.Equal(t, "ready as other (rank 1)", second.line())
	_, stderr, code := tpipe(t, "call", "-rendezvous", url, "-to", "other", "aten::neg", "[1]")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "static and dynamic members are mixed")
	for _, p := range []*process{second, first} {
		p.signal(syscall.SIGTERM)
		_, stderr, code := p.wait()
		require.Zero(t, code, stderr)
	}
}

// TestArgumentsOfACall checks that NAME=VALUE is a named argument and a string in double quotes
// never is, and that invalid arguments are usage errors.
func TestArgumentsOfACall(t *testing.T) {
	c := &caller{to: "worker0"}
	require.NoError(t, c.setOperands([]string{"example.find", `"color=red"`, "7", `where="a=b"`, "x=1=2", `"true"`, `"\u00e4\n"`, `say "hi"`, "none"}))
	require.Equal(t, "example.find", c.what)
	require.Equal(t, []any{"color=red", int64(7), "true", "ä\n", `say "hi"`, nil}, c.args)
	require.Equal(t, map[string]any{"where": "a=b", "x": "1=2"}, c.named)
	for text, want := range map[string]string{
		"alpha=2 alpha=3":       "argument alpha is given twice",
		"alpha=none alpha=none": "argument alpha is given twice",
		"http://host/?a=b":      `"http://host/?a" is not an argument name: put a string that contains = in double quotes`,
		"=3":                    `"" is not an argument name`,
		`"color=red`:            `"color=red is not a string in double quotes: `,
		`"a"b`:                  `"a"b is not a string in double quotes: `,
		`name="a`:               `"a is not a string in double quotes: `,
		"alpha=[1,":             "is not a tensor",
	} {
		err := (&caller{to: "worker0"}).setOperands(append([]string{"example.find"}, strings.Fields(text)...))
		require.ErrorContains(t, err, want, text)
		require.Equal(t, exitUsage, exitCode(err), text)
	}
}

func TestValuesOnTheCommandLine(t *testing.T) {
	for text, want := range map[string]string{
		"1": "1", "-2.5": "-2.5", "true": "true", "none": "none", "cat": "cat", "a:b": "a:b",
		"ints:[1,2]": "ints:[1,2]", "[]": "i64:[]", "[[1,2],[3,4]]": "i64:[[1,2],[3,4]]",
		"[1,2.5]": "f32:[1,2.5]", "f64:[0.1]": "f64:[0.1]", "u8:[255]": "u8:[255]", "i32:[-1]": "i32:[-1]", "i32:[-2147483648]": "i32:[-2147483648]",
	} {
		v, err := parseValue(text)
		require.NoError(t, err, text)
		require.Equal(t, want, format(v), text)
	}
	for text, want := range map[string]string{
		"[1,": "is not a tensor", "[1,2]]": "is not a tensor", "[1]} text": "is not a tensor", "[1,[2]]": "differ in length", "[[1],[2,3]]": "differ in length", `["a"]`: "is not a number",
		"u8:[256]": "256 is not a value of u8", "i32:[2147483648]": "2147483648 is not a value of i32", "i64:[1.5]": "1.5 is not a value of i64", "f32:[1e99]": "1e99 is not a value of f32", "x32:[1]": "x32", "ints:[a]": "not a list of integers",
		"c64:[1]": "tensors of c64 are not supported on the command line",
	} {
		_, err := parseValue(text)
		require.ErrorContains(t, err, want, text)
	}
	big, err := tensor.Zeros(tensor.F32, 1001)
	require.NoError(t, err)
	require.Equal(t, big.String(), format(big))
}

// TestWorkersOverTLS checks that a call with a certificate of the group's authority succeeds over
// TLS, and that one with another certificate, one without TLS and incomplete flags fail.
func TestWorkersOverTLS(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	cert, key := ours.member(t, "group", false)
	mine := []string{"-tls-cert", cert, "-tls-key", key, "-tls-ca", ours.file, "-tls-name", "group.example", "-listen", "uv://127.0.0.1:0"}
	unknown, unknownKey := theirs.member(t, "group", false)
	others := []string{"-tls-cert", unknown, "-tls-key", unknownKey, "-tls-ca", ours.file, "-tls-name", "group.example", "-listen", "uv://127.0.0.1:0"}
	url := "tcp://" + freeport.Addr(t)
	w := start(t, append([]string{"worker", "-rendezvous", url, "-store"}, mine...)...)
	require.Equal(t, "ready as worker0 (rank 0)", w.line())
	call := func(flags []string) (stdout, stderr string, code int) {
		return tpipe(t, append(append([]string{"call", "-rendezvous", url, "-timeout", "20s"}, flags...), "-to", "worker0", "aten::neg", "[1]")...)
	}
	stdout, stderr, code := call(mine)
	require.Zero(t, code, stderr)
	require.Equal(t, "i64:[-1]\n", stdout)

	_, stderr, code = call(others)
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "certificate")
	_, stderr, code = call([]string{"-listen", "uv://127.0.0.1:0"})
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, mismatch)
	_, stderr, code = call(mine[:4])
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "-tls-cert, -tls-key and -tls-ca belong together")
}
