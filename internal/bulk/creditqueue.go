package bulk

import "github.com/tensorpipe-go/tensorpipe/internal/fifo"

// creditQueue lets eager transfers begin in the order of their messages, each as soon as there is credit for it.
// Both ends have a queue for each direction, with the same claims, and change it in the same order: the sender
// when frames of the control stream arrive, the receiver when it sends them. So the receiver knows which transfers
// wait.
type creditQueue struct {
	free    int // bytes of credit; too few for the first claim
	waiting fifo.Queue[creditClaim]
}

// creditClaim is one transfer in a creditQueue.
type creditClaim struct {
	length  int
	op      *transferOp // at the sender
	arrival *arrival    // at the receiver
}

// claim reports whether a transfer begins at once. Otherwise it waits.
func (q *creditQueue) claim(c creditClaim) (begins bool) {
	if q.waiting.Len() == 0 && c.length <= q.free {
		q.free -= c.length
		return true
	}
	q.waiting.Push(c)
	return false
}

// beginsWith reports whether a transfer waits that could begin with n more bytes of credit.
func (q *creditQueue) beginsWith(n int) bool {
	return q.waiting.Len() > 0 && q.waiting.Front().length <= q.free+n
}

// next returns the first transfer that waits, and takes it out, if there is credit for it.
func (q *creditQueue) next() (c creditClaim, ok bool) {
	if !q.beginsWith(0) {
		return c, false
	}
	c = q.waiting.Pop()
	q.free -= c.length
	return c, true
}
