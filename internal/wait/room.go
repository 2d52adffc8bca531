package wait

import "sync/atomic"

// room is what all Readers of a process share: its processors.
type room struct {
	seats atomic.Uint64 // given out so far
	last  atomic.Uint64 // the seat for which something came last
	due   atomic.Bool   // somebody spins for what is due
}

// process is the room of this process. It holds nothing that two users of the
// process could want to be different.
var process room

// seat is the place of one Reader in a room.
type seat struct {
	room   *room
	number uint64
	run    atomic.Int32 // times in a row that something came for this one alone, up to quiet
}

// quiet is how long that run has to be before a Reader takes a processor for
// itself.
const quiet = 8

func (r *room) enter() *seat { return &seat{room: r, number: r.seats.Add(1)} }

// came notes that there was something for this seat. The room is written to
// only where that changes it, since others may be looking at it all the time.
func (s *seat) came() {
	if s.room.last.Load() != s.number {
		s.room.last.Store(s.number)
		s.run.Store(0)
	} else if s.run.Load() < quiet {
		s.run.Add(1)
	}
}

// alone reports whether nothing came for others lately.
func (s *seat) alone() bool { return s.run.Load() >= quiet && s.room.last.Load() == s.number }
