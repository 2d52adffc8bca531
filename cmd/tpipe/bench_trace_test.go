package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// traceEntry is an entry of a file in Chrome's Trace Event Format.
type traceEntry struct {
	Name string
	PH   string
	TS   *float64
	Dur  float64
	PID  int
	TID  int
	S    string
	Args map[string]any
}

// readTrace returns the entries of the trace file at path. An error ends the test.
func readTrace(t *testing.T, path string) (entries []traceEntry) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &entries))
	return entries
}

// TestBenchTrace checks the trace of a bench: both processes have a name, and each has the opening
// and the end of its pipe and all messages. Messages in one thread of the trace do not overlap.
func TestBenchTrace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	_, stderr, code := tpipe(t, "bench", "-transport", "uv", "-channel", "basic", "-count", "5", "-size", "100KiB", "-trace", path)
	require.Zero(t, code, stderr)
	entries := readTrace(t, path)

	processes, threads := map[string]int{}, map[int]bool{}
	messages, instants := map[string][]traceEntry{}, map[string]int{}
	ends := map[int]float64{} // of the last message, by thread
	for _, e := range entries {
		require.NotNil(t, e.TS)
		require.GreaterOrEqual(t, *e.TS, 0.0)
		switch e.PH {
		case "M":
			name := e.Args["name"].(string)
			if e.Name == "process_name" {
				processes[name] = e.PID
			} else {
				require.Equal(t, "thread_name", e.Name)
				threads[e.TID] = true
			}
			continue
		case "X":
			require.GreaterOrEqual(t, *e.TS, ends[e.TID]-0.002, "messages of one thread overlap") // rounded to ns
			ends[e.TID] = *e.TS + e.Dur
			require.Positive(t, e.Dur)
		case "i":
			require.Equal(t, "t", e.S)
			for name, pid := range processes {
				if pid == e.PID {
					instants[name+" "+e.Name]++
				}
			}
		default:
			require.Fail(t, "another phase", e.PH)
		}
		require.True(t, threads[e.TID], "the thread has a name")
		for name, pid := range processes {
			if pid == e.PID && e.PH == "X" {
				messages[name+" "+e.Name] = append(messages[name+" "+e.Name], e)
			}
		}
	}
	require.Len(t, processes, 2)
	require.NotEqual(t, processes["bench client"], processes["bench server"])
	for _, end := range []string{"bench client", "bench server"} {
		for _, name := range []string{"opened", "closed"} {
			require.Equal(t, 1, instants[end+" "+name], "%s %s", end, name)
		}
		for _, name := range []string{"write", "read"} {
			large := 0
			for _, e := range messages[end+" "+name] {
				require.NotContains(t, e.Args, "error")
				if e.Args["bytes"] == float64(100<<10) {
					large++
				}
			}
			require.GreaterOrEqual(t, large, 5, "%s %s", end, name)
		}
	}
	require.Equal(t, len(messages["bench client write"]), len(messages["bench server read"]))
}

// TestBenchTraceUnwritable checks that a bench whose -trace file cannot be opened fails before it
// measures anything, and leaves no file for -svg.
func TestBenchTraceUnwritable(t *testing.T) {
	dir := t.TempDir()
	chart := filepath.Join(dir, "bench.svg")
	stdout, stderr, code := tpipe(t, "bench", "-count", "5", "-svg", chart, "-trace", filepath.Join(dir, "none", "trace.json"))
	require.NotZero(t, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "-trace: open ")
	require.Contains(t, stderr, "no such file or directory")
	require.NoFileExists(t, chart)
}
