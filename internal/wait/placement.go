package wait

import (
	"math/bits"
	"time"
)

const (
	// pollsBeforeYield is how often a MemoryPoller polls before it yields, if the peer runs on
	// another processor. It covers the few microseconds within which most changes come; a system
	// call would delay them by one.
	pollsBeforeYield = 300

	// pollsIfCrowded takes the place of pollsBeforeYield while more threads spin than there are
	// processors: the polls keep the processor from another one, whose change may have come.
	pollsIfCrowded = 30

	// In a first yield of at least switchedYield another thread has run here. If that was so in
	// crowdedYields of the last 8 spins, more threads spin than there are processors.
	switchedYield = 1500 * time.Nanosecond
	crowdedYields = 3

	// yieldedAnswers is the number of consecutive changes, each found right after a yield, from
	// which on the peer is taken to share the processor.
	yieldedAnswers = 4

	// minAnswersToMove and maxAnswersToMove bound the number of such changes after which the
	// thread moves to another processor.
	minAnswersToMove, maxAnswersToMove = 16, 1 << 11

	// In a yield of at least slowYield another thread has run here. Its duration counts as one
	// change for each quickAnswer.
	slowYield   = 20 * time.Microsecond
	quickAnswer = 4 * time.Microsecond
)

// placement estimates whether the peer, which is to change the memory, runs on this processor. The
// kernel may leave two processes that wait for each other on one processor. Then each change needs
// a switch, so polling before a yield only delays it, and of two that copy much each stops while
// the other one copies.
type placement struct {
	run   int // consecutive changes found after one yield; a slow yield counts as several
	limit int // of run, at which the thread moves next; 0: minAnswersToMove

	switched uint8 // by spin, the last one in bit 0: another thread has run in its first yield
}

// polls returns how many times to poll before the first yield: 0 if the peer seems to run on this
// processor, and otherwise pollsBeforeYield.
func (a *placement) polls() int {
	if a.run >= yieldedAnswers {
		return 0
	}
	if bits.OnesCount8(a.switched) >= crowdedYields {
		return pollsIfCrowded
	}
	return pollsBeforeYield
}

// yielded records the duration of the first yield of a spin.
func (a *placement) yielded(took time.Duration) {
	a.switched <<= 1
	if took >= switchedYield {
		a.switched |= 1
	}
}

// early records a change that was found without a yield, which shows that the peer runs on another
// processor. It begins the count of changes found after a yield again, and lowers limit, the count
// at which the thread moves, by one unless it is 0. It does not reset limit, because on a busy
// machine some changes are found early even if the peer shares the processor.
func (a *placement) early() { a.run, a.limit = 0, max(a.limit-1, 0) }

// late records a change that was found after that number of yields; last is the duration of the
// last one. It returns true if the caller should move the thread to another processor, because the
// peer seems to share this one.
func (a *placement) late(yields int, last time.Duration) (move bool) {
	if yields > 1 && last < slowYield {
		a.run = 0 // a thread that runs here would have been found after one yield
		return false
	}
	a.run += 1 + int(last/quickAnswer)
	if a.run < max(a.limit, minAnswersToMove) {
		return false
	}
	a.limit = min(2*max(a.limit, minAnswersToMove), maxAnswersToMove)
	a.run = 0
	return true
}
