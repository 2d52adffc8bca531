package segment_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/parity"
	"github.com/tensorpipe-go/tensorpipe/internal/testutil/testwait"
)

func TestParity(t *testing.T) {
	parity.Case(t, "tensorpipe/common.ShmSegment", func(t *testing.T) {
		t.Run("SameProducerConsumer_Scalar", testScalar)
		t.Run("SingleProducer_SingleConsumer_Array", testArray)
	})
}

// A number outlives the mapping through which it was written: a descriptor that was passed over a
// socket keeps the memory.
func testScalar(t *testing.T) {
	s := newTestSegment(t, segment.Create, 4)
	floats(s)[0] = 0.25
	f := passFile(t, s.File())
	require.NoError(t, s.Close())
	other := mapForTest(t, f, 4)
	require.Equal(t, []float32{0.25}, floats(other))
	third := mapForTest(t, f, 4)
	require.NoError(t, f.Close())
	floats(third)[0] = 4
	require.Equal(t, []float32{4}, floats(other))
}

// mapForTest maps f, whose size must be size, and returns the segment, which is closed when the
// test ends.
func mapForTest(t *testing.T, f *os.File, size int) *segment.Segment {
	t.Helper()
	s, err := segment.Map(f, 1<<30)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.Len(t, s.Bytes(), size)
	return s
}

// Numbers that another process changes in a segment have their new values here.
func testArray(t *testing.T) {
	const size = 330_000 * 4
	for name, maker := range makers {
		t.Run(name, func(t *testing.T) {
			s := newTestSegment(t, maker, size)
			for i := range floats(s) {
				floats(s)[i] = float32(i)
			}
			require.NoError(t, peer(t, "doubler", s.File()).Run())
			for i, v := range floats(mapForTest(t, s.File(), size)) {
				if v != 2*float32(i) {
					t.Fatalf("number %d is %v", i, v)
				}
			}
		})
	}
}

// If another process truncates a segment while this one copies to or from it, Guard returns
// ErrFault after the first page was copied, and the process goes on.
func TestPeerShrinksDuringCopies(t *testing.T) {
	for name, direction := range map[string]func(shared, own []byte){
		"read":  func(shared, own []byte) { copy(own, shared) },
		"write": func(shared, own []byte) { copy(shared, own) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestSegment(t, segment.Create, 16<<20)
			own := bytes.Repeat([]byte{7}, len(s.Bytes()))
			copyOnce := func() error { return segment.Guard(func() error { direction(s.Bytes(), own); return nil }, s.Bytes()) }
			require.NoError(t, copyOnce())

			cmd := peer(t, "shrinker", s.File())
			order, err := cmd.StdinPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			_, err = order.Write([]byte{0})
			require.NoError(t, err)
			fault := testwait.Start(func() error { return untilError(copyOnce) })
			require.ErrorIs(t, testwait.Finish(t, fault), segment.ErrFault)
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

// Without Guard, an access to a truncated segment kills the process.
func TestUnguardedFaultIsFatal(t *testing.T) {
	s := newTestSegment(t, segment.Create, 4096)
	cmd := peer(t, "unguarded", s.File())
	var said bytes.Buffer
	cmd.Stderr = &said
	require.Error(t, cmd.Run())
	require.Contains(t, said.String(), "unexpected fault address")
}

// A guard applies to its goroutine only: faults on others stay fatal. After the guard, also after a
// fault, the setting is the same as before.
func TestGuardsNest(t *testing.T) {
	s := newTestSegment(t, segment.Create, 4096)
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

// received is the descriptor of the first file that a child process was given.
const received = 3

var peers = map[string]func() error{
	"doubler":   doubler,
	"shrinker":  shrinker,
	"unguarded": unguarded,
}

// floats returns the memory of a segment as a slice of numbers. The slice shares that memory.
func floats(s *segment.Segment) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(&s.Bytes()[0])), len(s.Bytes())/4)
}

// doubler is a child process that maps the segment in its file and doubles every number in it.
func doubler() error {
	f := os.NewFile(received, "segment")
	s, err := segment.Map(f, 1<<30)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	for i := range floats(s) {
		floats(s)[i] *= 2
	}
	return s.Close()
}

// shrinker is a child process that waits for input and then truncates the segment in its file to
// one page.
func shrinker() error {
	if _, err := bufio.NewReader(os.Stdin).ReadByte(); err != nil {
		return err
	}
	return os.NewFile(received, "segment").Truncate(int64(os.Getpagesize()))
}

// unguarded is a child process that truncates a mapped segment and accesses it without a guard,
// which kills the process.
func unguarded() error {
	f := os.NewFile(received, "segment")
	s, err := segment.Map(f, 1<<30)
	if err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = fmt.Fprintln(io.Discard, s.Bytes()[0])
	return err
}
