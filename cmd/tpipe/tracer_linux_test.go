package main

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe"
	"github.com/tensorpipe-go/tensorpipe/channel/cma"
)

// yama creates a directory with the kernel files of a machine on which Yama restricts tracing
// (ptrace_scope is 1), and returns its path, for cma.Options.Root.
func yama(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"sys/kernel/security/lsm":           "capability,yama",
		"proc/sys/kernel/yama/ptrace_scope": "1\n",
	} {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return root
}

// TestAllowAnyTracer checks that on a machine with Yama the channel cma is rejected without
// -allow-any-tracer and accepted with it.
func TestAllowAnyTracer(t *testing.T) {
	if err := cma.New(cma.Options{}).Viable(); err != nil {
		t.Skip("direct copies do not work here: ", err)
	}
	for _, c := range []struct {
		flags []string
		why   string // reason for rejection; empty if direct copies work
	}{
		{nil, "-channel: cma does not work on this machine"},
		{[]string{"-allow-any-tracer=false"}, "ptrace_scope is 1"},
		{[]string{"-allow-any-tracer"}, ""},
	} {
		f := selectionFlags{copies: cma.Options{Root: yama(t)}}
		fs := flag.NewFlagSet("test", flag.ContinueOnError)
		f.flags(fs, tensorpipe.DefaultProfile())
		require.NoError(t, fs.Parse(append(c.flags, "-channel", "cma,basic")))
		_, err := f.viableProfile()
		if c.why == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.why)
		}
	}
}

// TestBenchAllowsAnyTracer checks that a bench copies the value of -allow-any-tracer to its specs.
func TestBenchAllowsAnyTracer(t *testing.T) {
	for _, want := range []bool{false, true} {
		var b benchmark
		fs := flag.NewFlagSet("test", flag.ContinueOnError)
		b.flags(fs)
		if want {
			require.NoError(t, fs.Parse([]string{"-allow-any-tracer"}))
		}
		require.Equal(t, want, b.spec(8).AllowAnyTracer)
	}
}

// TestAllowAnyTracerIsExplained checks that the help pages of commands with -allow-any-tracer state
// its consequence.
func TestAllowAnyTracerIsExplained(t *testing.T) {
	for _, command := range []string{"ping", "echo", "bench"} {
		stdout, stderr, code := tpipe(t, command, "-h")
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, "-allow-any-tracer")
		require.Contains(t, stdout, "every process of the same user")
	}
}
