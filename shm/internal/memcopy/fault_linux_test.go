package memcopy_test

import (
	"os"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A fault during a copy is a panic, as with the built-in copy, if the caller has enabled such
// panics (debug.SetPanicOnFault).
func TestCopyFault(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer f.Close()
	const size = 64 << 10
	require.NoError(t, f.Truncate(size))
	mem, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	require.NoError(t, err)
	defer func() { require.NoError(t, syscall.Munmap(mem)) }()
	require.NoError(t, f.Truncate(size/2))
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	own := make([]byte, size)
	for _, k := range kinds {
		require.Panics(t, func() { k.copy(own, mem) }, k.name)
		require.Panics(t, func() { k.copy(mem, own) }, k.name)
	}
}
