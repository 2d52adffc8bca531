package ringsession

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/tensorpipe-go/tensorpipe/internal/segment"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// A slot is the part of a segment where one stream has its two rings. It has a base part, which
// every stream touches, and a growth part, which a stream touches only if it carries much:
//
//	base    slot header | ring header | region 0 | ring header | region 0
//	growth  region 1 | region 1 | region 2 | region 2 | ...
//
// In each pair the first ring carries bytes from the end that opened the stream, and the
// second one bytes to it. A segment holds the base parts of all its slots, then their growth
// parts: together the base parts take fewer pages and page tables.
const (
	slotHeaderSize = 128

	offsetVacant = 0  // not 0: the accepting end has no stream in the slot
	offsetLarge  = 64 // not 0: rings begin with the last uncharged region and do not grow
)

// ringKind determines the number and the sizes of the regions of a ring. Both rings of a slot have
// the same kind.
type ringKind int

const (
	largeRing ringKind = iota // for the first stream that an end opens, and for bulk streams
	smallRing                 // for all other streams
)

// regionSpec describes one region of a kind of ring.
type regionSpec struct {
	size       int // in bytes, a power of two
	minTraffic int // bytes that pass through the ring before its writer uses the region; see grow
}

// regionSpecs lists the regions of each kind of ring. A ring begins with the first one.
var regionSpecs = [...][]regionSpec{
	largeRing: {{16 << 10, 0}, {128 << 10, 128 << 10}, {512 << 10, 2 << 20}, {2 << 20, 4 << 20}},
	smallRing: {{4 << 10, 0}, {16 << 10, 32 << 10}, {64 << 10, 128 << 10}},
}

// baseSize returns the size in bytes of a slot's base part, which holds the headers and the first
// region of both rings.
func (k ringKind) baseSize() int { return slotHeaderSize + 2*(ringHeaderSize+regionSpecs[k][0].size) }

// growthSize returns the size in bytes of a slot's growth part, which holds all regions of both
// rings but the first.
func (k ringKind) growthSize() (size int) {
	for _, spec := range regionSpecs[k][1:] {
		size += 2 * spec.size
	}
	return size
}

// firstSegmentKinds are the slots of the first segment of an end: for the message stream, the
// control stream and one bulk stream of a pipe. Each later slot has a segment of its own.
var firstSegmentKinds = []ringKind{largeRing, smallRing, largeRing}

// preparedSegmentKinds returns the kinds of the slots of a prepared segment for that number of
// streams: those of any first segment, followed by small ones. There are at least three, and at
// most maxSlots/2. The caller owns the result.
func preparedSegmentKinds(streams int) []ringKind {
	kinds := slices.Clone(firstSegmentKinds)
	for range min(streams, maxSlots/2) - len(firstSegmentKinds) {
		kinds = append(kinds, smallRing)
	}
	return kinds
}

// segmentSize returns the size in bytes of a segment with slots of these kinds.
func segmentSize(kinds ...ringKind) (size int) {
	for _, kind := range kinds {
		size += kind.baseSize() + kind.growthSize()
	}
	return size
}

// slot is a fixed position in a segment that both processes have mapped, where one stream at a time
// has its two rings. Its slices and pointers refer to the memory of the segment. Session.mu guards
// the fields that are not in shared memory.
type slot struct {
	vacant     *atomic.Uint32 // in the segment: the accepting end has no stream here
	base       []byte
	fromOpener ring // carries bytes from the end that opens the stream
	toOpener   ring
	kind       ringKind
	firstLevel int     // index of the region that both rings begin with
	used       bool    // this end has a stream here, or is opening one
	stream     *stream // that stream, nil for none
	reserved   bool    // the rings have pages for all that they begin with
}

// ring is the memory of one ring, part of a mapped segment. The index of a region is called its
// level.
type ring struct {
	kind    ringKind
	header  []byte
	regions regions
}

// regions are the areas of a ring, by level. They are part of a mapped segment.
type regions [][]byte

// slotsIn returns the slots of a mapped segment, in order. kinds holds the kind of each slot, and
// the segment must have the size that segmentSize returns for them. The slots refer to the memory
// of segment.
func slotsIn(segment []byte, kinds []ringKind) (all []*slot) {
	growth := segment
	for _, kind := range kinds {
		growth = growth[kind.baseSize():]
	}
	base := segment
	for _, kind := range kinds {
		all = append(all, newSlot(base[:kind.baseSize()], growth[:kind.growthSize()], kind))
		base, growth = base[kind.baseSize():], growth[kind.growthSize():]
	}
	return all
}

// newSlot returns a slot of that kind, whose base part is base and whose growth part is growth. It
// reads from the header in base with which region the rings begin. The slot refers to both slices.
func newSlot(base, growth []byte, kind ringKind) *slot {
	s := &slot{vacant: uint32At(base, offsetVacant), base: base, kind: kind}
	if uint32At(base, offsetLarge).Load() != 0 {
		s.firstLevel = chargedLevel - 1
	}
	next := func(from *[]byte, n int) []byte {
		part := (*from)[:n:n]
		*from = (*from)[n:]
		return part
	}
	base = base[slotHeaderSize:]
	for _, r := range []*ring{&s.fromOpener, &s.toOpener} {
		r.kind, r.header = kind, next(&base, ringHeaderSize)
		r.regions = append(r.regions, next(&base, regionSpecs[kind][0].size))
	}
	for _, spec := range regionSpecs[kind][1:] {
		for _, r := range []*ring{&s.fromOpener, &s.toOpener} {
			r.regions = append(r.regions, next(&growth, spec.size))
		}
	}
	return s
}

func uint32At(mem []byte, at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&mem[at])) }

// reserve reserves pages for the slot's base part and for the regions that its rings begin with,
// unless it has done so before. It returns nil if this system cannot reserve pages of existing
// memory. Both ends call it: a peer could have sent a segment without any memory. Other errors are
// those of segment.Reserve. The caller holds Session.mu.
func (s *slot) reserve() error {
	if s.reserved {
		return nil
	}
	for _, memory := range [][]byte{s.base, s.fromOpener.regions[s.firstLevel], s.toOpener.regions[s.firstLevel]} {
		if err := ignoreUnsupported(segment.Reserve(memory)); err != nil {
			return err
		}
	}
	s.reserved = true
	return nil
}

// ignoreUnsupported returns nil for an err that matches errors.ErrUnsupported, and err otherwise.
// It is for errors of reserving pages: a process that cannot reserve pages of mapped memory relies
// on the peer to have reserved them.
func ignoreUnsupported(err error) error {
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

// CreateSegment creates the segment of a session whose client opens up to that many streams, one of
// them a bulk stream. The server calls it, and passes the file to the client before the session
// begins: a lack of descriptors or mappings at either end then fails the handshake and not the open
// session. The caller owns the segment until NewSessionWithSegment. The errors are those of
// segment.CreateSparse.
func CreateSegment(streams int) (*segment.Segment, error) {
	return createSegment(preparedSegmentKinds(streams))
}

// MapSegment maps the segment that the server has created with [CreateSegment] for the same number
// of streams. The caller keeps f, and owns the segment until NewSessionWithSegment. The error
// matches [ErrCorrupt] if the segment is not such a one, and is a *segment.Error if this system
// refuses to map it.
func MapSegment(f *os.File, streams int) (*segment.Segment, error) {
	return mapSegment(f, []int{segmentSize(preparedSegmentKinds(streams)...)})
}

// createSegment creates a segment with one slot of each of the kinds, which the caller owns, and
// reserves pages for the slot headers only. Some systems cannot reserve pages later (Linux before
// 5.14). There createSegment reserves all pages that the rings will use: the rings begin with their
// largest region that is not charged to the budget, and do not grow. The errors are those of
// segment.CreateSparse.
func createSegment(kinds []ringKind) (*segment.Segment, error) {
	size, base := segmentSize(kinds...), 0
	var headers []segment.Extent
	for _, kind := range kinds {
		headers = append(headers, segment.Extent{Offset: base, Length: slotHeaderSize})
		base += kind.baseSize()
	}
	seg, err := segment.CreateSparse(size, headers...)
	if err != nil || !errors.Is(segment.Reserve(seg.Bytes()[:1]), errors.ErrUnsupported) {
		return seg, err
	}
	_ = seg.Close()
	extents, growth := []segment.Extent{{Offset: 0, Length: base}}, base
	for _, kind := range kinds {
		at := growth
		for _, spec := range regionSpecs[kind][1 : chargedLevel-1] {
			at += 2 * spec.size
		}
		extents = append(extents, segment.Extent{Offset: at, Length: 2 * regionSpecs[kind][chargedLevel-1].size})
		growth += kind.growthSize()
	}
	if seg, err = segment.CreateSparse(size, extents...); err != nil {
		return nil, err
	}
	for _, h := range headers {
		uint32At(seg.Bytes(), h.Offset+offsetLarge).Store(1)
	}
	return seg, nil
}

// mapSegment maps a segment of the peer, which must be sealed and have one of these sizes in bytes.
// The caller keeps f and owns the segment. The error matches [ErrCorrupt] if the peer is at fault,
// and is a *segment.Error if this system refuses to map the segment.
func mapSegment(f *os.File, sizes []int) (*segment.Segment, error) {
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
		return nil, fmt.Errorf("%w: a segment of %d bytes, sealed: %t; want a sealed one of %d", ErrCorrupt, n, s.Sealed(), sizes)
	}
	return s, nil
}

// useSegment uses the slots of seg, a prepared segment, for the streams that the client opens. The
// session owns seg, even after an error. The error means that seg does not have the size for
// cfg.MaxStreams. If seg is nil useSegment does nothing. It is called before any other goroutine
// uses s.
func (s *Session) useSegment(seg *segment.Segment, cfg transport.SessionConfig) error {
	if seg == nil {
		return nil
	}
	s.segments = append(s.segments, seg)
	kinds := preparedSegmentKinds(cfg.MaxStreams)
	if n := len(seg.Bytes()); n != segmentSize(kinds...) {
		return fmt.Errorf("ringsession: a segment of %d bytes is not for %d streams", n, cfg.MaxStreams)
	}
	all := slotsIn(seg.Bytes(), kinds)
	if !cfg.Client {
		s.peerSlots = all
		return nil
	}
	for _, p := range all {
		p.vacant.Store(1)
	}
	s.localSlots = all
	return nil
}
