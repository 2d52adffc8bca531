package segment_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

// A fault in memory that was not passed to Guard, which the peer has not caused, becomes a panic
// with the address.
func TestGuardIgnoresOtherMemory(t *testing.T) {
	s := newTestSegment(t, segment.Create, 4096)
	for name, other := range map[string]func(*testing.T) []byte{
		"an application's": func(t *testing.T) []byte {
			memory, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, unix.Munmap(memory)) })
			return memory
		},
		"another segment": func(t *testing.T) []byte {
			other := newTestSegment(t, segment.Create, 4096)
			require.NoError(t, other.File().Truncate(0))
			return other.Bytes()
		},
	} {
		t.Run(name, func(t *testing.T) {
			memory := other(t)
			defer func() {
				fault, ok := recover().(interface{ Addr() uintptr })
				require.True(t, ok)
				start := uintptr(unsafe.Pointer(&memory[0]))
				require.GreaterOrEqual(t, fault.Addr(), start)
				require.Less(t, fault.Addr(), start+uintptr(len(memory)))
			}()
			err := segment.Guard(func() error { copy(s.Bytes(), memory); return nil }, s.Bytes())
			require.Fail(t, "no panic", "%v", err)
		})
	}
}
