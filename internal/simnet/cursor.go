package simnet

import "time"

// cursor is how far a reader of bare bytes has got in what the other end wrote.
type cursor struct {
	parcel *parcel
	frame  int   // its number
	read   int64 // bytes of it, header included
}

// place is where the reader stands once it has so many bytes more. A header of
// a frame that is read as bytes goes with the place before the body.
func (c *cursor) place(more int64) place {
	return place{frame: c.frame, offset: max(0, c.read+more-c.parcel.header)}
}

// next moves a reader on that has read all of its parcel, and tells when the
// next byte arrives and where it lies. size is for bytes without a parcel.
func (l *Link) next(from End, c *cursor, size int64) (arrives time.Time, at place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c.read >= c.parcel.wire() {
		*c = cursor{parcel: l.ways[from].receive(size), frame: c.frame + 1}
	}
	return c.parcel.arrives, c.place(1)
}

// take moves a reader on by up to want bytes, the first of which has arrived.
// It returns how many have.
func (l *Link) take(from End, c *cursor, want int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(want, max(1, c.parcel.wire()-c.read))
	if held := l.ways[from].held; held != nil && c.place(n).behind(*held) {
		n = max(1, held.offset-c.place(0).offset)
	}
	c.read += n
	return n
}
