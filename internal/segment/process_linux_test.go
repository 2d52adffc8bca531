package segment_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/patience"
	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

func TestParity(t *testing.T) {
	parity.Case(t, "tensorpipe/common.ShmSegment", func(t *testing.T) {
		t.Run("SameProducerConsumer_Scalar", testScalar)
		t.Run("SingleProducer_SingleConsumer_Array", testArray)
	})
}

// A number outlives the mapping in which it was written: a descriptor that went over
// a socket keeps the memory.
func testScalar(t *testing.T) {
	s := created(t, segment.Create, 4)
	floats(s)[0] = 0.25
	f := passed(t, s.File())
	require.NoError(t, s.Close())
	other := remapped(t, f, 4)
	require.Equal(t, []float32{0.25}, floats(other))
	third := remapped(t, f, 4)
	require.NoError(t, f.Close())
	floats(third)[0] = 4
	require.Equal(t, []float32{4}, floats(other))
}

// remapped maps f, which must have that size, until the test ends.
func remapped(t *testing.T, f *os.File, size int) *segment.Segment {
	t.Helper()
	s, err := segment.Map(f, 1<<30)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.Len(t, s.Bytes(), size)
	return s
}

// Another process maps 330,000 numbers and doubles them.
func testArray(t *testing.T) {
	const size = 330_000 * 4
	for name, maker := range makers {
		t.Run(name, func(t *testing.T) {
			s := created(t, maker, size)
			for i := range floats(s) {
				floats(s)[i] = float32(i)
			}
			require.NoError(t, peer(t, "doubler", s.File()).Run())
			for i, v := range floats(remapped(t, s.File(), size)) {
				if v != 2*float32(i) {
					t.Fatalf("number %d is %v", i, v)
				}
			}
		})
	}
}

// Another process shrinks the segment while this one copies out of it, or into
// it: the first page is copied, then comes the fault. The process goes on.
func TestPeerShrinksDuringCopies(t *testing.T) {
	for name, direction := range map[string]func(shared, own []byte){
		"read":  func(shared, own []byte) { copy(own, shared) },
		"write": func(shared, own []byte) { copy(shared, own) },
	} {
		t.Run(name, func(t *testing.T) {
			s := created(t, segment.Create, 16<<20)
			own := bytes.Repeat([]byte{7}, len(s.Bytes()))
			copyOnce := func() error { return segment.Guard(func() error { direction(s.Bytes(), own); return nil }, s.Bytes()) }
			require.NoError(t, copyOnce())

			cmd := peer(t, "shrinker", s.File())
			order, err := cmd.StdinPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			_, err = order.Write([]byte{0})
			require.NoError(t, err)
			fault := patience.Start(func() error { return untilError(copyOnce) })
			require.ErrorIs(t, patience.Finish(t, fault), segment.ErrFault)
			require.NoError(t, cmd.Wait())

			require.ErrorIs(t, copyOnce(), segment.ErrFault)
			require.Equal(t, own[0], s.Bytes()[0])
			require.NoError(t, segment.Guard(func() error { direction(s.Bytes()[:1], own); return nil }))
		})
	}
}

func untilError(f func() error) error {
	for {
		if err := f(); err != nil {
			return err
		}
	}
}

// Without the guard the same fault ends a process.
func TestUnguardedFaultIsFatal(t *testing.T) {
	s := created(t, segment.Create, 4096)
	cmd := peer(t, "unguarded", s.File())
	var said bytes.Buffer
	cmd.Stderr = &said
	require.Error(t, cmd.Run())
	require.Contains(t, said.String(), "unexpected fault address")
}

// The guard is for the goroutine that has it: faults elsewhere stay fatal, and
// the setting is as before when the guard ends, also by a fault.
func TestGuardsNest(t *testing.T) {
	s := created(t, segment.Create, 4096)
	require.NoError(t, s.File().Truncate(0))
	touch := func() error { s.Bytes()[0]++; return nil }
	var inner error
	outer := segment.Guard(func() error {
		inner = segment.Guard(touch, s.Bytes())
		return touch()
	}, s.Bytes())
	require.ErrorIs(t, inner, segment.ErrFault)
	require.ErrorIs(t, outer, segment.ErrFault)
}
