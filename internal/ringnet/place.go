package ringnet

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

const (
	// placeHeader stands before the two rings of a place.
	placeHeader = 64

	// firstRing and laterRing are the bytes of a ring: of the first stream that
	// an end opens, which carries messages, and of each other one.
	firstRing = 512 << 10
	laterRing = 64 << 10

	// firstPlaces is how many places an end's first segment has. Each further
	// one has a single place.
	firstPlaces = 2
)

// place is where a stream can be. What is in memory of this process alone is
// guarded by Session.mu.
type place struct {
	left        *atomic.Uint32 // the end that accepts has no stream here (any more)
	here, there []byte         // rings: from the end that opens, and to it
	used        bool           // this end has a stream here
}

// ringOf is the bytes of each ring of the k-th place of an end.
func ringOf(k int) int {
	if k == 0 {
		return firstRing
	}
	return laterRing
}

// segmentSize is the size of the segment that begins with the k-th place.
func segmentSize(k int) int {
	size := placeSize(k)
	for i := k + 1; k == 0 && i < firstPlaces; i++ {
		size += placeSize(i)
	}
	return size
}

func placeSize(k int) int { return placeHeader + 2*(headerSize+ringOf(k)) }

// places are those of a segment that begins with the k-th.
func places(mem []byte, k int) []*place {
	var all []*place
	for ; len(mem) > 0; k++ {
		own := mem[:placeSize(k)]
		mem = mem[len(own):]
		ring := headerSize + ringOf(k)
		all = append(all, &place{
			left:  (*atomic.Uint32)(unsafe.Pointer(&own[0])),
			here:  own[placeHeader:][:ring],
			there: own[placeHeader+ring:],
		})
	}
	return all
}

// mapPeers maps a segment that came from the peer, which is not to blame for what
// the system refuses.
func mapPeers(f *os.File, size int) (*segment.Segment, error) {
	s, err := segment.Map(f, int64(size))
	var refused *segment.Error
	if errors.As(err, &refused) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if !s.Sealed() || len(s.Bytes()) != size {
		s.Close()
		return nil, fmt.Errorf("%w: a segment of %d bytes, sealed: %t, want one of %d that is", ErrCorrupt, len(s.Bytes()), s.Sealed(), size)
	}
	return s, nil
}
