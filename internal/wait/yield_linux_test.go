package wait

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// allowed returns the processors on which the calling thread may run.
func allowed(t *testing.T) (set unix.CPUSet) {
	t.Helper()
	require.NoError(t, unix.SchedGetaffinity(0, &set))
	return set
}

// severalProcessors returns the processors on which the calling thread may run. It skips the test
// if there is only one or the affinity cannot be set.
func severalProcessors(t *testing.T) unix.CPUSet {
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

// migrate moves the thread to another processor, and restores its affinity.
func TestMigrate(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	before := severalProcessors(t)
	moved := 0
	for range 100 {
		from, err := processor()
		require.NoError(t, err)
		migrate()
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
func TestMigrateOfTiedThread(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	all := severalProcessors(t)
	for cpu := range 64 * len(all) {
		if !all.IsSet(cpu) {
			continue
		}
		var one unix.CPUSet
		one.Set(cpu)
		require.NoError(t, unix.SchedSetaffinity(0, &one))
		migrate()
		require.Equal(t, one, allowed(t))
	}
}

// restore permits the thread to run on exactly the given processors.
func TestRestore(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	tied := severalProcessors(t)
	here, err := processor()
	require.NoError(t, err)
	tied.Clear(here)
	require.NoError(t, unix.SchedSetaffinity(0, &tied))
	restore(&tied)
	require.Equal(t, tied, allowed(t))
}
