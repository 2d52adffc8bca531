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

// Who steps aside is on another processor then, and may run where it could before.
func TestStepAside(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	before := allowed(t)
	if before.Count() < 2 {
		t.Skip("the test may run on one processor only")
	}
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

// A thread that the application has tied to some processors stays with them.
func TestStepAsideOfATiedThread(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	all := allowed(t)
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

// Of the processors that a thread is tied to it uses another one.
func TestRestore(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	all := allowed(t)
	if all.Count() < 2 {
		t.Skip("the test may run on one processor only")
	}
	here, err := processor()
	require.NoError(t, err)
	tied := all
	tied.Clear(here)
	restore(&tied)
	require.Equal(t, tied, allowed(t))
}
