package segment_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

// received is where a peer has the first file that it was given.
const received = 3

var peers = map[string]func() error{
	"doubler":   doubler,
	"shrinker":  shrinker,
	"unguarded": unguarded,
}

// floats is what a segment holds as numbers.
func floats(s *segment.Segment) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(&s.Bytes()[0])), len(s.Bytes())/4)
}

// doubler maps a segment and doubles every number in it.
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

// shrinker shrinks a segment to one page as soon as it is told to.
func shrinker() error {
	if _, err := bufio.NewReader(os.Stdin).ReadByte(); err != nil {
		return err
	}
	return os.NewFile(received, "segment").Truncate(int64(os.Getpagesize()))
}

// unguarded touches memory that is gone.
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
