package rpcpeer

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/short"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

func TestMain(m *testing.M) {
	short.SkipPackage("starts peers in Python and compiles a nested module")
	leakcheck.Main(m)
}

// script returns a Peer over TCP whose program is the shell script text.
func script(text string) *Peer {
	return &Peer{"script", []string{"/bin/sh", "-c", text, "script"}, []string{TCP}}
}

const (
	line1 = `{"what":"add@1","over":"tcp","n":5,"p50_us":10,"p90_us":20.5,"p99_us":30,"per_s":100,"cpu_us":12}`
	line2 = `{"what":"bytes@8","over":"tcp","n":7,"p50_us":10,"p90_us":20,"p99_us":30,"per_s":100,"cpu_us":0,"bytes_per_s":800}`
)

var twoJobs = Config{Over: TCP, Jobs: []Job{Add(1, 5), Bytes(8, 7)}}

func TestRun(t *testing.T) {
	check := `[ "$*" = "--over tcp add@1=5 bytes@8=7" ] || exit 9; `
	got, err := script(check+`touch $TMPDIR/left; echo '`+line1+`'; echo '`+line2+`'`).Run(t.Context(), twoJobs)
	require.NoError(t, err)
	require.Equal(t, []Result{
		{What: "add@1", Over: TCP, N: 5, P50: 10, P90: 20.5, P99: 30, PerSecond: 100, CPU: 12},
		{What: "bytes@8", Over: TCP, N: 7, P50: 10, P90: 20, P99: 30, PerSecond: 100, BytesPerSecond: 800},
	}, got)
}

// TestRunCleansUp tests that Run removes the files that a program leaves in its folder for
// temporary files, even if the program is killed.
func TestRunCleansUp(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	_, err := script(`echo >$TMPDIR/left; kill -9 $$`).Run(t.Context(), twoJobs)
	require.ErrorContains(t, err, "signal: killed")
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestRunRejectsOutput(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no JSON":     {`echo hello; exec sleep 1000`, `script printed "hello"`},
		"other job":   {`echo '` + line2 + `'; exec sleep 1000`, "requested were 5 of add@1 over tcp"},
		"not sane":    {`echo '{"what":"add@1","over":"tcp","n":5}'; exec sleep 1000`, "requested were 5 of add@1 over tcp"},
		"too few":     {`echo '` + line1 + `'`, "script printed 1 results for 2 jobs"},
		"too many":    {`echo '` + line1 + `'; echo '` + line2 + `'; echo bye; exec sleep 1000`, `script continues with "bye"`},
		"no line end": {`exec cat /dev/zero`, "token too long"},
	} {
		t.Run(name, func(t *testing.T) {
			err := testwait.Finish(t, testwait.Start(func() error {
				_, err := script(c.text).Run(t.Context(), twoJobs)
				return err
			}))
			require.ErrorIs(t, err, ErrOutput)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestRunFails tests that the error of Run has the exit status and the standard error output of a
// program that fails, although it has printed a result, and is a ProcessError for a program that
// does not exist.
func TestRunFails(t *testing.T) {
	_, err := script(`echo '`+line1+`'; echo out of luck >&2; exit 3`).Run(t.Context(), twoJobs)
	require.EqualError(t, err, "script: exit status 3: out of luck")
	_, err = (&Peer{"nothing", []string{"/does/not/exist"}, []string{TCP}}).Run(t.Context(), twoJobs)
	require.ErrorIs(t, err, os.ErrNotExist)
	var failed *ProcessError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "nothing", failed.Name)
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"over nothing":   {Jobs: twoJobs.Jobs},
		"over the other": {Over: Unix, Jobs: twoJobs.Jobs},
		"no jobs":        {Over: TCP},
		"no calls":       {Over: TCP, Jobs: []Job{Add(1, 0)}},
		"an option":      {Over: TCP, Jobs: []Job{{"--limit", 1}}},
	} {
		_, err := script("exit 1").Run(t.Context(), c)
		require.ErrorIs(t, err, ErrConfig, name)
	}
}

func TestMissing(t *testing.T) {
	err := missing(t.Context(), "peer", "some\nlast words\n", io.EOF)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.EqualError(t, err, "no peer here: last words")
	require.EqualError(t, missing(t.Context(), "peer", "", io.EOF), "no peer here: EOF")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, context.Canceled, missing(ctx, "peer", "killed", io.EOF))
}
