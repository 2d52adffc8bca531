package simnet

import (
	"math/rand/v2"
	"time"
)

// Rule changes new links.
type Rule func(*Link)

// OnLink restricts rules to the link of that number.
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

// Delay makes each frame, and the end of the stream, arrive that much after it
// was written. The frames stay in order.
func Delay(d time.Duration) Rule {
	return func(l *Link) {
		for i := range l.ways {
			l.ways[i].delay = d
		}
	}
}

// Jitter adds to the delay of each frame a random time below limit. The same
// seed gives the same times to the frames of a link, each way on its own.
func Jitter(seed uint64, limit time.Duration) Rule {
	return func(l *Link) {
		for i := range l.ways {
			l.ways[i].jitter = limit
			l.ways[i].random = rand.New(rand.NewPCG(seed, uint64(2*l.number+i)))
		}
	}
}

// Rate lets that many bytes per second pass, each way on its own. A frame
// arrives when its last byte does; its header counts as 8 bytes. The writer
// feels it once the wrapped transport holds all that it can.
func Rate(bytesPerSecond int64) Rule {
	return func(l *Link) {
		for i := range l.ways {
			l.ways[i].rate = bytesPerSecond
		}
	}
}

// CutAt cuts a link at a point, see [Link.Cut]. The write that goes beyond the
// point fails.
func CutAt(p Point) Rule { return breakAt(p, cut) }

// HalfOpenAt makes a link half-open at a point, see [Link.HalfOpen].
func HalfOpenAt(p Point) Rule { return breakAt(p, halfOpen) }

func breakAt(p Point, kind faultKind) Rule {
	return OnLink(p.link, func(l *Link) {
		w := &l.ways[p.from]
		w.faults = append(w.faults, fault{Point: p, kind: kind})
	})
}

// End is one of the two ends of a link.
type End int

const (
	// Dialled is the end that dialled.
	Dialled End = iota
	// Accepted is the end that accepted.
	Accepted
)

// Counts is how much an end has written, whether or not it arrived.
type Counts struct {
	Frames int   // and Writes of bare bytes
	Bytes  int64 // of the bodies
}

// Point is a place in what one end of a link writes.
type Point struct {
	link   int
	from   End
	frames int   // whole frames before the point, if bytes is anywhere
	offset int64 // bytes of the next body before the point, or boundary
	bytes  int64 // body bytes before the point, or anywhere
}

const (
	boundary = -1 // the offset of a point before a header
	anywhere = -1 // the bytes of a point that counts frames
)

// AfterFrames is the point behind the first n frames that an end of a link
// writes. After 0 frames is before anything is written.
func AfterFrames(link int, from End, n int) Point {
	return Point{link: link, from: from, frames: n, offset: boundary, bytes: anywhere}
}

// WithinFrame is the point in the frame with that index, counted from 0,
// behind its header and the given number of bytes of its body; at the most
// behind all of it.
func WithinFrame(link int, from End, frame int, bytes int64) Point {
	return Point{link: link, from: from, frames: frame, offset: bytes, bytes: anywhere}
}

// AfterBytes is the point behind the first n bytes of the bodies that an end
// of a link writes.
func AfterBytes(link int, from End, n int64) Point {
	return Point{link: link, from: from, bytes: n}
}

// reached tells whether the point is right behind what was sent.
func (p Point) reached(sent Counts) (offset int64, ok bool) {
	if p.bytes != anywhere {
		return boundary, sent.Bytes == p.bytes
	}
	return boundary, p.offset == boundary && sent.Frames == p.frames
}

// inside finds the point in the next body, if it is there.
func (p Point) inside(sent Counts, size int64) (offset int64, ok bool) {
	if p.bytes != anywhere {
		offset = p.bytes - sent.Bytes
		return offset, offset < size
	}
	return min(p.offset, size), p.offset != boundary && sent.Frames == p.frames
}
