package shm

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// A writer that gives memory which may not be read has made a mistake, and hears of that
// by a panic, as elsewhere. The peer, which could take its own memory away, has not.
func TestFaultInTheWritersMemory(t *testing.T) {
	l := listen(t)
	c := newStranger(t, l).shake(t, l, 0, 1)
	memory, err := unix.Mmap(-1, 0, 8192, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer unix.Munmap(memory)
	defer func() {
		fault, ok := recover().(interface {
			runtime.Error
			Addr() uintptr
		})
		require.True(t, ok)
		start := uintptr(unsafe.Pointer(&memory[0]))
		require.GreaterOrEqual(t, fault.Addr(), start)
		require.Less(t, fault.Addr(), start+uintptr(len(memory)))
	}()
	err = c.WriteFrames(transport.Frame{memory})
	require.Fail(t, "no panic", "%v", err)
}
