package ringnet

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
)

const (
	// placeHeader stands before the two rings of a place.
	placeHeader = 64

	// largeRing and smallRing are the bytes of a ring: of the first stream that an
	// end opens, which carries messages, and of those for large data; and of each
	// other one.
	largeRing = 2 << 20
	smallRing = 64 << 10

	// firstPlaces is how many places an end's first segment has: for messages, for
	// the words about them, and for large data, which takes no memory until there is
	// some. Each further segment has a single place.
	firstPlaces = 3
)

// place is where a stream can be. What is in memory of this process alone is
// guarded by Session.mu.
type place struct {
	left        *atomic.Uint32 // the end that accepts has no stream here (any more)
	here, there []byte         // rings: from the end that opens, and to it
	used        bool           // this end has a stream here
	paged       bool           // the rings have the pages that they begin with
}

// firstRings are the rings of an end's first places, which are in one segment. Each
// further place has a segment of its own.
var firstRings = [firstPlaces]int{largeRing, smallRing, largeRing}

// sharedRings returns the sizes of the rings in a first segment with a place for each
// of that number of streams.
func sharedRings(streams int) []int {
	rings := firstRings[:]
	for range min(streams, maxPlaces/2) - firstPlaces {
		rings = append(rings, smallRing)
	}
	return rings
}

func placeSize(ring int) int { return placeHeader + 2*(headerSize+ring) }

// segmentSize returns the size of a segment with a place for each of the rings.
func segmentSize(rings []int) (size int) {
	for _, ring := range rings {
		size += placeSize(ring)
	}
	return size
}

// created makes the segment that begins with the k-th place, with such rings unless it
// is the first.
func created(k, ring int) (*segment.Segment, error) {
	if k == 0 {
		return createdFor(firstRings[:])
	}
	return createdFor([]int{ring})
}

// createdFor creates a segment with a place for each of the rings. Where the system can
// set pages aside later, only the headers have theirs; elsewhere the first part of each
// ring has them too.
func createdFor(rings []int) (*segment.Segment, error) {
	size, headers, begins := 0, []segment.Extent{}, []segment.Extent{}
	for _, ring := range rings {
		begin := headerSize + min(ring, startRing)
		headers = append(headers, segment.Extent{At: size, Length: placeHeader + headerSize})
		begins = append(begins,
			segment.Extent{At: size, Length: placeHeader + begin},
			segment.Extent{At: size + placeHeader + headerSize + ring, Length: begin})
		size += placeSize(ring)
	}
	seg, err := segment.CreateSparse(size, headers...)
	if err != nil || !errors.Is(segment.Reserve(seg.Bytes()[:1]), errors.ErrUnsupported) {
		return seg, err
	}
	_ = seg.Close()
	return segment.CreateSparse(size, begins...)
}

// page sets aside what the rings begin with, whatever the other end has done: a peer
// could send a segment without any memory.
func (p *place) page() error {
	if p.paged {
		return nil
	}
	for _, ring := range [][]byte{p.here, p.there} {
		_, data := split(ring)
		if err := setAside(ring[:headerSize+startOf(data)]); err != nil {
			return err
		}
	}
	p.paged = true
	return nil
}

// setAside has pages set aside that the other end says it has set aside already. Where
// this process cannot do that, which may be so in one and not in the other, it takes
// its word for it.
func setAside(memory []byte) error {
	err := segment.Reserve(memory)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

// sizes are those that the segment may have which begins with the k-th place.
func sizes(k int) []int {
	if k == 0 {
		return []int{segmentSize(firstRings[:])}
	}
	return []int{placeSize(smallRing), placeSize(largeRing)}
}

// places are those of a segment that begins with the k-th.
func places(mem []byte, k int) []*place {
	if k > 0 {
		return []*place{placeIn(mem)}
	}
	return placesOf(mem, firstRings[:])
}

// placesOf returns the places of a segment that was created with these rings.
func placesOf(mem []byte, rings []int) (all []*place) {
	for _, ring := range rings {
		n := placeSize(ring)
		all = append(all, placeIn(mem[:n]))
		mem = mem[n:]
	}
	return all
}

// placeIn is the place that is all of mem.
func placeIn(mem []byte) *place {
	rings := mem[placeHeader:]
	half := len(rings) / 2
	return &place{
		left:  (*atomic.Uint32)(unsafe.Pointer(&mem[0])),
		here:  rings[:half:half],
		there: rings[half:],
	}
}

// ring is the bytes of each ring of a place.
func (p *place) ring() int { return len(p.here) - headerSize }

// mapPeers maps a segment that came from the peer, which is not to blame for what
// the system refuses.
func mapPeers(f *os.File, sizes []int) (*segment.Segment, error) {
	s, err := segment.Map(f, int64(slices.Max(sizes)))
	var refused *segment.Error
	if errors.As(err, &refused) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if n := len(s.Bytes()); !s.Sealed() || !slices.Contains(sizes, n) {
		defer s.Close()
		return nil, fmt.Errorf("%w: a segment of %d bytes, sealed: %t, want one of %d that is", ErrCorrupt, n, s.Sealed(), sizes)
	}
	return s, nil
}
