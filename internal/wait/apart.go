package wait

import "time"

const (
	// eager is how often a Memory looks before it yields to a peer that runs on
	// a processor of its own: the few microseconds within which most answers
	// come. A system call would delay them by one.
	eager = 300

	// afterYield is after how many answers that came because the spinner had
	// yielded, one after the other, it takes its peer to be on its own processor.
	afterYield = 4

	// firstMove and lastMove bound after how many more such answers it tries to
	// get away from there.
	firstMove, lastMove = 16, 1 << 11

	// a yield that takes long is one in which another thread has run here; what it
	// takes counts as so many answers that came soon.
	long   = 20 * time.Microsecond
	answer = 4 * time.Microsecond
)

// apart knows whether the peer, which is to change the memory, runs on a processor
// of its own. Where two that wait for each other share one, each answer takes a
// switch, and looking again and again only delays it; of two that move much each stands
// still while the other copies. The kernel leaves them there.
type apart struct {
	run   int // answers in a row that came right behind a yield; a late one counts for several
	limit int // of run, for the next move; 0 is firstMove
}

// looks is how often to look before the first yield.
func (a *apart) looks() int {
	if a.run >= afterYield {
		return 0
	}
	return eager
}

// early notes an answer that came without a yield. One alone says little of whether a move
// would help the next time: on a busy machine they come in between.
func (a *apart) early() { a.run, a.limit = 0, max(a.limit-1, 0) }

// late notes one that came after some yields, the last of which took so long, and
// reports whether it is time to move.
func (a *apart) late(yields int, last time.Duration) (move bool) {
	if yields > 1 && last < long {
		a.run = 0 // who runs here would have answered at once
		return false
	}
	a.run += 1 + int(last/answer)
	if a.run < max(a.limit, firstMove) {
		return false
	}
	a.limit = min(2*max(a.limit, firstMove), lastMove)
	a.run = 0
	return true
}
