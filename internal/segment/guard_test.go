package segment_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

func TestGuardReturnsTheError(t *testing.T) {
	require.NoError(t, segment.Guard(func() error { return nil }))
	own := errors.New("own")
	require.Equal(t, own, segment.Guard(func() error { return own }))
}

// Panics that are not faults of shared memory pass through Guard: they are mistakes of the caller.
func TestGuardPassesPanics(t *testing.T) {
	require.PanicsWithValue(t, "mistake", func() {
		segment.Guard(func() error { panic("mistake") })
	})
	var nowhere *int
	require.Panics(t, func() {
		segment.Guard(func() error { *nowhere = 1; return nil })
	})
	require.Panics(t, func() {
		segment.Guard(func() error { _ = []int{}[len(t.Name())]; return nil })
	})
}

func TestGuardAllocatesNothing(t *testing.T) {
	n, memory := 0, make([]byte, 8)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		err := segment.Guard(func() error { n++; return nil }, memory, memory)
		if err != nil {
			t.Error(err)
		}
	}))
	require.Equal(t, 101, n)
}

// The cost of a guard is the difference between this benchmark and BenchmarkNoGuard.
func BenchmarkGuard(b *testing.B) {
	b.ReportAllocs()
	for n := 0; b.Loop(); {
		if err := segment.Guard(func() error { n++; return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNoGuard(b *testing.B) {
	b.ReportAllocs()
	for n := 0; b.Loop(); {
		if err := unguardedCall(func() error { n++; return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

//go:noinline
func unguardedCall(f func() error) error { return f() }
