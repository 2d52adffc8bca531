//go:build linux || darwin

package flock_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/flock"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

func TestLocks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	try := func(f *os.File, alone, want bool) {
		t.Helper()
		got, err := flock.Try(f, alone)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	a, b := open(), open()
	try(a, false, true)
	try(b, false, true)
	try(b, true, false)
	require.NoError(t, flock.Unlock(a))
	require.NoError(t, flock.Unlock(b))
	try(a, true, true)
	try(b, false, false)
	require.NoError(t, a.Close())
	try(b, true, true)

	_, err := flock.Try(a, true)
	require.Error(t, err, "the file is closed")
	require.Error(t, flock.Unlock(a), "the file is closed")
}
