package simnet

import (
	"iter"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// direction is the state of one of the two directions of a link, that in which one end writes. The
// mutex of the link guards it; the caller of its methods must hold it.
type direction struct {
	delay  time.Duration
	jitter time.Duration
	random *rand.Rand
	rate   int64 // bytes per second, or 0 for no limit
	header int64 // bytes of each frame's header
	faults []fault

	sent     Counts
	lineBusy time.Time    // when the last byte leaves at this rate
	inFlight []*frameInfo // written, and not yet returned by receive
	last     *frameInfo   // the last one written
	end      time.Time    // when the end of the stream arrives
	held     *position    // nothing after this position arrives, if not nil
}

type faultKind int

const (
	cut faultKind = iota
	halfOpen
)

// fault is a cut or a stall of the link that happens once, when the traffic reaches its point.
type fault struct {
	Point
	kind faultKind
}

// frameInfo describes a frame that one end has written.
type frameInfo struct {
	header   int64
	size     int64 // of the body, as in the header
	bodySent int64 // bytes of the body that were sent, less than size after a cut
	arrives  time.Time
}

// wire returns the number of bytes of the frame that were sent, its header included.
func (p *frameInfo) wire() int64 { return p.header + p.bodySent }

// position is a position in what one end of a link writes: in the body of the frame with that index,
// after offset bytes, or before the header of that frame if offset is boundary.
type position struct {
	frame  int
	offset int64
}

func (p position) after(q position) bool {
	return p.frame > q.frame || p.frame == q.frame && p.offset > q.offset
}

// sentPosition returns the position directly after all frames that were sent so far.
func (d *direction) sentPosition() position { return position{frame: d.sent.Frames, offset: boundary} }

// holdBack makes bytes after the position at not arrive until Heal. If bytes after an earlier
// position are held back already, it changes nothing.
func (d *direction) holdBack(at position) {
	if d.held == nil || d.held.after(at) {
		d.held = &at
	}
}

// takeFaults returns a sequence over the faults in d.faults for whose points match returns true.
// The sequence removes each of them from d.faults and yields its kind and the offset that match has
// returned.
func (d *direction) takeFaults(match func(Point) (offset int64, ok bool)) iter.Seq2[faultKind, int64] {
	return func(yield func(faultKind, int64) bool) {
		for i := 0; i < len(d.faults); {
			f := d.faults[i]
			offset, ok := match(f.Point)
			if !ok {
				i++
				continue
			}
			d.faults = slices.Delete(d.faults, i, i+1)
			if !yield(f.kind, offset) {
				return
			}
		}
	}
}

// takeBoundaryFaults returns a sequence that removes the faults whose point is directly after the
// frames sent so far from d.faults, and yields the kind of each. The offset that it yields has no
// meaning.
func (d *direction) takeBoundaryFaults() iter.Seq2[faultKind, int64] {
	return d.takeFaults(func(p Point) (int64, bool) { return p.reached(d.sent) })
}

// takeFaultsInFrame returns a sequence that removes the faults whose point is within the next
// frame, with a body of size bytes, from d.faults. It yields the kind of each fault and its offset
// in the body.
func (d *direction) takeFaultsInFrame(size int64) iter.Seq2[faultKind, int64] {
	return d.takeFaults(func(p Point) (int64, bool) { return p.inside(d.sent, size) })
}

// send counts a frame whose body has size bytes, of which only the first bodySent go onto the wire.
// It determines when the frame arrives, and appends it to d.inFlight.
func (d *direction) send(size, bodySent int64) {
	d.sent.Frames++
	d.sent.Bytes += bodySent
	p := &frameInfo{header: d.header, size: size, bodySent: bodySent}
	p.arrives = d.arrival(p.wire())
	d.inFlight = append(d.inFlight, p)
	d.last = p
}

// unsend subtracts the given number of bytes from the counts of d and of its last frame. They were
// counted as sent, but their write was interrupted.
func (d *direction) unsend(bytes int64) {
	d.sent.Bytes -= bytes
	d.last.bodySent -= bytes
}

// arrival returns the time at which the given number of bytes, written now, arrives by the rate,
// delay and jitter of the direction. It also marks the line as busy with these bytes, so that later
// ones arrive after them.
func (d *direction) arrival(bytes int64) time.Time {
	now := time.Now()
	if d.lineBusy.Before(now) {
		d.lineBusy = now
	}
	if d.rate > 0 {
		d.lineBusy = d.lineBusy.Add(time.Duration(float64(bytes) / float64(d.rate) * float64(time.Second)))
	}
	at := d.lineBusy.Add(d.delay)
	if d.jitter > 0 {
		at = at.Add(time.Duration(d.random.Int64N(int64(d.jitter))))
	}
	return at
}

// receive removes the oldest frame from d.inFlight and returns it. If d.inFlight is empty, because
// the writer is not part of the network, it returns a frame whose body of size bytes has arrived.
func (d *direction) receive(size int64) *frameInfo {
	if len(d.inFlight) == 0 {
		return &frameInfo{size: size, bodySent: size}
	}
	p := d.inFlight[0]
	d.inFlight = d.inFlight[1:]
	return p
}

// prefix returns a frame with the first n bytes of f, or with all if f has fewer. The result shares
// the memory of f.
func prefix(f transport.Frame, n int64) transport.Frame {
	var out transport.Frame
	for _, p := range f {
		take := min(n, int64(len(p)))
		out = append(out, p[:take])
		n -= take
	}
	return out
}
