package cxx

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func program(text string) Program {
	return Program{Name: "small", Folder: "src", Sources: fstest.MapFS{"src/main.cc": {Data: []byte(text)}}}
}

func TestMachineWithoutCompiler(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("HOME", t.TempDir())
	_, err := program("int main() {}").Build()
	var missing *MissingError
	require.ErrorAs(t, err, &missing)
	require.ErrorContains(t, err, "g++ is not installed")
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	tools, cache := t.TempDir(), t.TempDir()
	broken := "#!/bin/sh\necho main.cc:1: syntax error >&2\nexit 1\n"
	require.NoError(t, os.WriteFile(filepath.Join(tools, "g++"), []byte(broken), 0o700))
	t.Setenv("PATH", tools)
	err := program("oops").compile(cache, filepath.Join(cache, "small"))
	var failed *CompileError
	require.ErrorAs(t, err, &failed)
	require.ErrorContains(t, err, "main.cc:1: syntax error")
	left, err := os.ReadDir(cache)
	require.NoError(t, err)
	require.Empty(t, left)
}

// Programs with the same sources have the same fingerprint, and those with different sources
// different ones.
func TestFingerprint(t *testing.T) {
	require.Equal(t, program("a").fingerprint(), program("a").fingerprint())
	require.NotEqual(t, program("a").fingerprint(), program("b").fingerprint())
}
