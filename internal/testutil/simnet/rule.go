package simnet

import (
	"math/rand/v2"
	"time"
)

// Rule configures a new link before its first traffic.
type Rule func(*Link)

// OnLink returns a Rule that applies rules to the link with the given number, and does nothing on
// other links. It retains rules.
func OnLink(number int, rules ...Rule) Rule {
	return func(l *Link) {
		if l.number != number {
			return
		}
		for _, rule := range rules {
			rule(l)
		}
	}
}

// Delay returns a Rule that makes each frame, and the end of the stream, arrive d after it was
// written, in both directions. Frames stay in order.
func Delay(d time.Duration) Rule {
	return func(l *Link) {
		for i := range l.directions {
			l.directions[i].delay = d
		}
	}
}

// Jitter returns a Rule that adds a random time from 0 to limit, excluding limit, to the delay of
// each frame. The random times depend only on seed, the number of the link and the direction.
// Frames stay in order.
func Jitter(seed uint64, limit time.Duration) Rule {
	return func(l *Link) {
		for i := range l.directions {
			l.directions[i].jitter = limit
			l.directions[i].random = rand.New(rand.NewPCG(seed, uint64(2*l.number+i)))
		}
	}
}

// Rate returns a Rule that limits each direction to the given number of bytes per second. A frame
// arrives when its last byte does, with a header that counts as 8 bytes. A writer is slowed down
// only once the buffers of the wrapped transport are full.
func Rate(bytesPerSecond int64) Rule {
	return func(l *Link) {
		for i := range l.directions {
			l.directions[i].rate = bytesPerSecond
		}
	}
}

// CutAt returns a Rule that cuts the link of p, as [Link.Cut] does, when the traffic reaches p.
// Bytes before p arrive; a write that goes beyond p fails.
func CutAt(p Point) Rule { return breakAt(p, cut) }

// HalfOpenAt returns a Rule that makes the link of p half-open, as [Link.HalfOpen] does, when the
// traffic reaches p. Bytes before p arrive.
func HalfOpenAt(p Point) Rule { return breakAt(p, halfOpen) }

func breakAt(p Point, kind faultKind) Rule {
	return OnLink(p.link, func(l *Link) {
		w := &l.directions[p.from]
		w.faults = append(w.faults, fault{Point: p, kind: kind})
	})
}

// End is one of the two ends of a link. The other end of e is 1 - e.
type End int

const (
	// Dialled is the end that Dial returned.
	Dialled End = iota
	// Accepted is the end that Accept returned.
	Accepted
)

// Counts is how much one end of a link has written, whether or not it arrived.
type Counts struct {
	Frames int   // and Writes of a stream
	Bytes  int64 // of the bodies
}

// Point is a position in what one end of a link writes, at which a rule breaks the link.
type Point struct {
	link   int
	from   End
	frames int   // whole frames before the point, if bytes is anywhere
	offset int64 // bytes of the next body before the point, or boundary
	bytes  int64 // body bytes before the point, or anywhere
}

const (
	boundary = -1 // offset of a point before a header
	anywhere = -1 // bytes of a point that counts frames
)

// AfterFrames returns the point directly after the first n frames that the end from of the link
// with that number writes. If n is 0 the point is before the first byte.
func AfterFrames(link int, from End, n int) Point {
	return Point{link: link, from: from, frames: n, offset: boundary, bytes: anywhere}
}

// WithinFrame returns a point in the bytes that the end from of the link with that number writes:
// within the frame with the given index, counted from 0, after its header and the given number of
// bytes of its body. If the body is shorter, the point is at its end.
func WithinFrame(link int, from End, frame int, bytes int64) Point {
	return Point{link: link, from: from, frames: frame, offset: bytes, bytes: anywhere}
}

// AfterBytes returns the point directly after the first n bytes that the end from of the link with
// that number writes. Only the bodies of frames count, not their headers.
func AfterBytes(link int, from End, n int64) Point {
	return Point{link: link, from: from, bytes: n}
}

// reached reports in ok whether p is directly after the frames counted in sent. offset is always
// boundary, because such a point is not within a frame.
func (p Point) reached(sent Counts) (offset int64, ok bool) {
	if p.bytes != anywhere {
		return boundary, sent.Bytes == p.bytes
	}
	return boundary, p.offset == boundary && sent.Frames == p.frames
}

// inside reports in ok whether p is within the next frame, whose body has size bytes, and returns
// the offset of p in that body. sent counts the frames before it. If ok is false, offset has no
// meaning.
func (p Point) inside(sent Counts, size int64) (offset int64, ok bool) {
	if p.bytes != anywhere {
		offset = p.bytes - sent.Bytes
		return offset, offset < size
	}
	return min(p.offset, size), p.offset != boundary && sent.Frames == p.frames
}
