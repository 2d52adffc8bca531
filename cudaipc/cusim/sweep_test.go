package cusim

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

// compileNothing makes Build run a compiler that writes empty programs, until the test t ends. It
// skips t where Build does not work.
func compileNothing(t *testing.T) {
	Library(t)
	compiler := filepath.Join(t.TempDir(), "compiler")
	require.NoError(t, os.WriteFile(compiler, []byte("#!/bin/sh\nwhile [ $1 != -o ]; do shift; done\n: >$2\n"), 0o700))
	t.Setenv("CC", compiler)
}

// A build that compiles removes the folders that have not been used for a week, and keeps its own,
// those that have been used since, and files.
func TestUnusedBuildsAreRemoved(t *testing.T) {
	compileNothing(t)
	dir := t.TempDir()
	folder := func(name string, unused time.Duration) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.Mkdir(path, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(path, libraryName), nil, 0o600))
		used := time.Now().Add(-unused)
		require.NoError(t, os.Chtimes(path, used, used))
		return path
	}
	old, recent, interrupted := folder("old", unusedFor+time.Hour), folder("recent", unusedFor-time.Hour), folder("build-1", 2*unusedFor)
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Chtimes(file, time.Unix(1, 0), time.Unix(1, 0)))

	lib, err := Build(dir)
	require.NoError(t, err)
	require.NoDirExists(t, old)
	require.NoDirExists(t, interrupted)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 3)
	require.FileExists(t, filepath.Join(recent, libraryName))
	require.FileExists(t, file)
	require.FileExists(t, lib)
}

// A build that a call has returned within a week is kept, however old it is.
func TestUsedBuildIsKept(t *testing.T) {
	compileNothing(t)
	dir := t.TempDir()
	lib, err := Build(dir)
	require.NoError(t, err)
	old := time.Now().Add(-unusedFor + time.Hour)
	require.NoError(t, os.Chtimes(filepath.Dir(lib), old, old))
	again, err := Build(dir)
	require.NoError(t, err)
	require.Equal(t, lib, again)
	removeUnused(dir, time.Now().Add(unusedFor-time.Hour))
	require.FileExists(t, lib)
	removeUnused(dir, time.Now().Add(unusedFor+time.Hour))
	require.NoFileExists(t, lib)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

// Calls of Build and removeUnused at the same time, as if each build were old when it is looked for:
// each call of Build succeeds.
func TestBuildsAndRemovalsAtTheSameTime(t *testing.T) {
	compileNothing(t)
	dir := t.TempDir()
	lib, err := Build(dir)
	require.NoError(t, err)
	target := filepath.Dir(lib)
	stop := make(chan struct{})
	stopped := testwait.Start(func() error {
		for {
			select {
			case <-stop:
				return nil
			default:
				removeUnused(dir, time.Now())
			}
		}
	})
	for range 50 {
		old := time.Now().Add(-2 * unusedFor)
		_ = os.Chtimes(target, old, old) // fails if it has been removed
		again, err := Build(dir)
		require.NoError(t, err)
		require.Equal(t, lib, again)
	}
	close(stop)
	require.NoError(t, testwait.Finish(t, stopped))
}
