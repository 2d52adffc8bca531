package wait

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// allowed is where the thread of the test may run.
func allowed(t *testing.T) (set unix.CPUSet) {
	t.Helper()
	require.NoError(t, unix.SchedGetaffinity(0, &set))
	return set
}

// several is allowed for tests that need a choice, and the right to make it.
func several(t *testing.T) unix.CPUSet {
	t.Helper()
	set := allowed(t)
	if set.Count() < 2 {
		t.Skip("the test may run on one processor only")
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		t.Skip("no thread may be tied to processors here: ", err)
	}
	return set
}

// Who steps aside is on another processor then, and may run where it could before.
func TestStepAside(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	before := several(t)
	moved := 0
	for range 100 {
		from, err := processor()
		require.NoError(t, err)
		stepAside()
		to, err := processor()
		require.NoError(t, err)
		if from != to {
			moved++
		}
		require.Equal(t, before, allowed(t))
	}
	require.Greater(t, moved, 50, "the kernel can only sometimes have moved it back")
}

// A thread that the application has tied to one processor stays there.
func TestStepAsideOfATiedThread(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	all := several(t)
	for cpu := range 64 * len(all) {
		if !all.IsSet(cpu) {
			continue
		}
		var one unix.CPUSet
		one.Set(cpu)
		require.NoError(t, unix.SchedSetaffinity(0, &one))
		stepAside()
		require.Equal(t, one, allowed(t))
	}
}

// A thread that may run on some of the processors may do so again, and on no other.
func TestRestore(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	tied := several(t)
	here, err := processor()
	require.NoError(t, err)
	tied.Clear(here)
	require.NoError(t, unix.SchedSetaffinity(0, &tied))
	restore(&tied)
	require.Equal(t, tied, allowed(t))
}
