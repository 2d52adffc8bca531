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
	placeHeader = 128

	atLeft  = 0  // the end that accepts has no stream here (any more)
	atLarge = 64 // the rings begin with their largest unpaid regions
)

// ringKind is a kind of rings.
type ringKind int

const (
	largeRing ringKind = iota // of the first stream that an end opens, which carries messages, and for large data
	smallRing                 // of each other stream
)

// regionKind is the size of a region in bytes, a power of two, and the number of bytes that
// go through the ring before the region is used.
type regionKind struct{ size, after int }

// regionsOf are the regions of a ring.
var regionsOf = [...][]regionKind{
	largeRing: {{16 << 10, 0}, {128 << 10, 128 << 10}, {512 << 10, 2 << 20}, {2 << 20, 4 << 20}},
	smallRing: {{4 << 10, 0}, {16 << 10, 32 << 10}, {64 << 10, 128 << 10}},
}

// nearSize is the size of a place's header and of the headers and first regions of its
// rings, which are touched by every stream; farSize is the size of the other regions.
func (k ringKind) nearSize() int { return placeHeader + 2*(headerSize+regionsOf[k][0].size) }
func (k ringKind) farSize() (size int) {
	for _, region := range regionsOf[k][1:] {
		size += 2 * region.size
	}
	return size
}

// ring is the memory of a ring.
type ring struct {
	kind    ringKind
	header  []byte
	regions regions
}

// regions are the bytes of a ring.
type regions [][]byte

// place is where a stream can be. What is in memory of this process alone is
// guarded by Session.mu.
type place struct {
	left        *atomic.Uint32 // the end that accepts has no stream here (any more)
	near        []byte         // headers and first regions
	here, there ring           // from the end that opens, and to it
	kind        ringKind       // of the rings
	level       int            // of the region that each ring begins with
	used        bool           // this end has a stream here
	paged       bool           // the rings have the pages that they begin with
}

// firstRings are the rings of an end's first places, which are in one segment: for
// messages, for the words about them, and for large data, which takes no memory until
// there is some. Each further place has a segment of its own.
var firstRings = []ringKind{largeRing, smallRing, largeRing}

// sharedRings returns the rings of a first segment with a place for each of that number
// of streams.
func sharedRings(streams int) []ringKind {
	rings := slices.Clone(firstRings)
	for range min(streams, maxPlaces/2) - len(firstRings) {
		rings = append(rings, smallRing)
	}
	return rings
}

// segmentSize is the size of a segment of places with such rings. The near parts of all
// places come first: together they take fewer pages, and fewer page tables.
func segmentSize(kinds ...ringKind) (size int) {
	for _, kind := range kinds {
		size += kind.nearSize() + kind.farSize()
	}
	return size
}

// created makes the segment that begins with the k-th place, with such rings unless it
// is the first.
func created(k int, kind ringKind) (*segment.Segment, error) {
	if k == 0 {
		return createdFor(firstRings)
	}
	return createdFor([]ringKind{kind})
}

// createdFor creates a segment with a place for each of the rings, and pages for the
// headers of places. Where the system cannot set pages aside later, rings begin with the
// largest region that the budget does not pay for, which has pages then, and do not grow.
func createdFor(kinds []ringKind) (*segment.Segment, error) {
	size, near := segmentSize(kinds...), 0
	var headers []segment.Extent
	for _, kind := range kinds {
		headers = append(headers, segment.Extent{At: near, Length: placeHeader})
		near += kind.nearSize()
	}
	seg, err := segment.CreateSparse(size, headers...)
	if err != nil || !errors.Is(segment.Reserve(seg.Bytes()[:1]), errors.ErrUnsupported) {
		return seg, err
	}
	_ = seg.Close()
	unpaid, far := []segment.Extent{{At: 0, Length: near}}, near
	for _, kind := range kinds {
		at := far
		for _, region := range regionsOf[kind][1 : paidLevel-1] {
			at += 2 * region.size
		}
		unpaid = append(unpaid, segment.Extent{At: at, Length: 2 * regionsOf[kind][paidLevel-1].size})
		far += kind.farSize()
	}
	if seg, err = segment.CreateSparse(size, unpaid...); err != nil {
		return nil, err
	}
	for _, h := range headers {
		wordAt(seg.Bytes(), h.At+atLarge).Store(1)
	}
	return seg, nil
}

func wordAt(mem []byte, at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&mem[at])) }

// page sets aside what the rings begin with, whatever the other end has done: a peer
// could send a segment without any memory.
func (p *place) page() error {
	if p.paged {
		return nil
	}
	for _, memory := range [][]byte{p.near, p.here.regions[p.level], p.there.regions[p.level]} {
		if err := supported(segment.Reserve(memory)); err != nil {
			return err
		}
	}
	p.paged = true
	return nil
}

// supported is err unless this process cannot set pages aside, which may be so in one and
// not in the other: it takes the other end's word for it then.
func supported(err error) error {
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

// sizes are those that the segment may have which begins with the k-th place.
func sizes(k int) []int {
	if k == 0 {
		return []int{segmentSize(firstRings...)}
	}
	return []int{segmentSize(smallRing), segmentSize(largeRing)}
}

// places are those of a segment that begins with the k-th.
func places(mem []byte, k int) (all []*place) {
	kinds := firstRings
	if k > 0 && len(mem) == segmentSize(smallRing) {
		kinds = []ringKind{smallRing}
	} else if k > 0 {
		kinds = []ringKind{largeRing}
	}
	return placesOf(mem, kinds)
}

// placesOf returns the places of a segment that was created with these rings.
func placesOf(mem []byte, kinds []ringKind) (all []*place) {
	far := mem
	for _, kind := range kinds {
		far = far[kind.nearSize():]
	}
	for _, kind := range kinds {
		all = append(all, placeIn(mem[:kind.nearSize()], far[:kind.farSize()], kind))
		mem, far = mem[kind.nearSize():], far[kind.farSize():]
	}
	return all
}

// placeIn is the place in that memory, with such rings.
func placeIn(near, far []byte, kind ringKind) *place {
	p := &place{left: wordAt(near, atLeft), near: near, kind: kind}
	if wordAt(near, atLarge).Load() != 0 {
		p.level = paidLevel - 1
	}
	rest := near[placeHeader:]
	take := func(from *[]byte, n int) []byte {
		part := (*from)[:n:n]
		*from = (*from)[n:]
		return part
	}
	for _, r := range []*ring{&p.here, &p.there} {
		r.kind, r.header = kind, take(&rest, headerSize)
		r.regions = append(r.regions, take(&rest, regionsOf[kind][0].size))
	}
	for _, region := range regionsOf[kind][1:] {
		for _, r := range []*ring{&p.here, &p.there} {
			r.regions = append(r.regions, take(&far, region.size))
		}
	}
	return p
}

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
