package simnet

import (
	"iter"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// way is one of the two directions of a link, named after the end that writes.
// The lock of the link protects it.
type way struct {
	delay  time.Duration
	jitter time.Duration
	random *rand.Rand
	rate   int64 // 0: without limit
	header int64 // bytes on the wire before each body
	faults []fault

	sent     Counts
	busy     time.Time // when the last byte leaves at the limited rate
	underWay []*parcel // written and not yet announced to the reader
	last     *parcel   // written last
	end      time.Time // when the end of the stream arrives
	held     *place    // what lies behind does not arrive
}

type faultKind int

const (
	cut faultKind = iota
	halfOpen
)

// fault happens once.
type fault struct {
	Point
	kind faultKind
}

// parcel is what the reader must know about a frame besides its bytes.
type parcel struct {
	header  int64
	size    int64 // of the body, as announced to the reader
	there   int64 // bytes of the body that were sent
	arrives time.Time
}

// wire is the number of bytes that were sent.
func (p *parcel) wire() int64 { return p.header + p.there }

// place is a position in what one end writes: so many whole frames and so many
// bytes of the next body, or boundary for not even its header.
type place struct {
	frame  int
	offset int64
}

func (p place) behind(q place) bool {
	return p.frame > q.frame || p.frame == q.frame && p.offset > q.offset
}

// here is the place behind all that was sent.
func (w *way) here() place { return place{frame: w.sent.Frames, offset: boundary} }

// holdBack keeps what lies behind a place from arriving.
func (w *way) holdBack(at place) {
	if w.held == nil || w.held.behind(at) {
		w.held = &at
	}
}

// due takes the faults that find places, one after the other.
func (w *way) due(find func(Point) (offset int64, ok bool)) iter.Seq2[faultKind, int64] {
	return func(yield func(faultKind, int64) bool) {
		for i := 0; i < len(w.faults); {
			f := w.faults[i]
			offset, ok := find(f.Point)
			if !ok {
				i++
				continue
			}
			w.faults = slices.Delete(w.faults, i, i+1)
			if !yield(f.kind, offset) {
				return
			}
		}
	}
}

// dueHere takes the faults that wait between two frames.
func (w *way) dueHere() iter.Seq2[faultKind, int64] {
	return w.due(func(p Point) (int64, bool) { return p.reached(w.sent) })
}

// dueInside takes the faults that wait in a frame about to be sent.
func (w *way) dueInside(size int64) iter.Seq2[faultKind, int64] {
	return w.due(func(p Point) (int64, bool) { return p.inside(w.sent, size) })
}

// send accounts for a frame of which there bytes go onto the wire.
func (w *way) send(size, there int64) {
	w.sent.Frames++
	w.sent.Bytes += there
	p := &parcel{header: w.header, size: size, there: there}
	p.arrives = w.arrival(p.wire())
	w.underWay = append(w.underWay, p)
	w.last = p
}

// unsend takes back the end of what was sent last: its writer gave up.
func (w *way) unsend(bytes int64) {
	w.sent.Bytes -= bytes
	w.last.there -= bytes
}

// arrival is when bytes written now have all arrived, if those before have.
func (w *way) arrival(bytes int64) time.Time {
	now := time.Now()
	if w.busy.Before(now) {
		w.busy = now
	}
	if w.rate > 0 {
		w.busy = w.busy.Add(time.Duration(float64(bytes) / float64(w.rate) * float64(time.Second)))
	}
	at := w.busy.Add(w.delay)
	if w.jitter > 0 {
		at = at.Add(time.Duration(w.random.Int64N(int64(w.jitter))))
	}
	return at
}

// receive takes the parcel of the frame that the reader is told about; its
// body has size bytes on the wire. A writer that is no part of the network
// leaves no parcels.
func (w *way) receive(size int64) *parcel {
	if len(w.underWay) == 0 {
		return &parcel{size: size, there: size}
	}
	p := w.underWay[0]
	w.underWay = w.underWay[1:]
	return p
}

// head returns the first n bytes of f.
func head(f transport.Frame, n int64) transport.Frame {
	var out transport.Frame
	for _, p := range f {
		take := min(n, int64(len(p)))
		out = append(out, p[:take])
		n -= take
	}
	return out
}
