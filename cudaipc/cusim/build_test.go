package cusim

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// Concurrent builds give one file, and nothing else remains.
func TestBuild(t *testing.T) {
	Library(t) // skips the test if there is no compiler
	dir := t.TempDir()
	type result struct {
		file string
		err  error
	}
	build := func() result {
		file, err := Build(dir)
		return result{file, err}
	}
	first, second := testwait.Start(build), testwait.Start(build)
	a, b := testwait.Finish(t, first), testwait.Finish(t, second)
	require.NoError(t, a.err)
	require.NoError(t, b.err)
	require.Equal(t, a.file, b.file)
	require.FileExists(t, a.file)
	require.Equal(t, libraryName, filepath.Base(a.file))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)

	t.Setenv("PATH", "") // no compiler can run
	t.Setenv("CC", "")
	_, err = Build(dir)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "no C compiler")
}

func TestBuildFails(t *testing.T) {
	Library(t)
	compiler := filepath.Join(t.TempDir(), "broken")
	require.NoError(t, os.WriteFile(compiler, []byte("#!/bin/sh\necho unknown option >&2\nexit 3\n"), 0o700))
	t.Setenv("CC", compiler)
	_, err := Build(t.TempDir())
	var failed *CompileError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "unknown option\n", failed.Output)
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
}

// outcome records how Library ends a test.
type outcome struct {
	testing.TB
	skipped, failed bool
}

func (o *outcome) Helper()      {}
func (o *outcome) Skip(...any)  { o.skipped = true }
func (o *outcome) Fatal(...any) { o.failed = true }

func TestLibraryWithoutCompiler(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("CC", "")
	t.Setenv(Require, "")
	o := &outcome{TB: t}
	require.Empty(t, Library(o))
	require.Equal(t, &outcome{TB: t, skipped: true}, o)
	t.Setenv(Require, "1")
	o = &outcome{TB: t}
	require.Empty(t, Library(o))
	require.Equal(t, &outcome{TB: t, failed: true}, o)
}
