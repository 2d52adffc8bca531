package transfer

import (
	"context"
	"io"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// Queue holds transfers in order, including those in progress: one goroutine processes the transfer
// at the front and pops it when it is complete. Only that goroutine calls Wait and Pop; the other
// methods may be called concurrently.
type Queue struct {
	arrived chan struct{} // signals a Push or End

	mu     sync.Mutex
	fifo   fifo.Queue[Transfer]
	closed bool
	ended  bool // nothing more will be pushed
}

// NewQueue returns an empty queue.
func NewQueue() *Queue { return &Queue{arrived: make(chan struct{}, 1)} }

// Push appends t to the queue, wakes a waiting Wait, and returns true. After Close it returns
// false, and the caller must complete t.
func (q *Queue) Push(t Transfer) bool {
	if !q.add(t) {
		return false
	}
	q.wake()
	return true
}

func (q *Queue) wake() {
	select {
	case q.arrived <- struct{}{}:
	default:
	}
}

func (q *Queue) add(t Transfer) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.fifo.Push(t)
	}
	return !q.closed
}

// End announces that nothing more will be pushed: Wait then returns io.EOF once the queue is empty.
// Transfers in the queue stay there.
func (q *Queue) End() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	q.wake()
}

// Wait blocks until the queue is not empty, and returns a copy of its first transfer, which stays
// in the queue. It returns the cause of ctx if ctx has ended, even if the queue is not empty, and
// io.EOF if the queue is empty and End has been called; the Transfer is then zero. Only one
// goroutine may call it at a time.
func (q *Queue) Wait(ctx context.Context) (Transfer, error) {
	for {
		if err := context.Cause(ctx); err != nil {
			return Transfer{}, err
		}
		if t, ok := q.Peek(0); ok {
			return t, nil
		}
		if q.hasEnded() {
			return Transfer{}, io.EOF
		}
		select {
		case <-q.arrived:
		case <-ctx.Done():
		}
	}
}

// Peek returns a copy of the i-th transfer of the queue, which stays in the queue; 0 is the first.
// If the queue has i transfers or fewer, it returns the zero Transfer and false.
func (q *Queue) Peek(i int) (Transfer, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i >= q.fifo.Len() {
		return Transfer{}, false
	}
	return *q.fifo.At(i), true
}

func (q *Queue) hasEnded() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ended && q.fifo.Len() == 0
}

// Pop removes the first transfer from the queue and returns it. The queue must not be empty. If
// Done of the result is not nil the caller must call it; it is nil if the transfer was cancelled.
func (q *Queue) Pop() Transfer {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.fifo.Pop()
}

// Has reports whether a transfer with the given id is in the queue. A transfer in progress is still
// in the queue.
func (q *Queue) Has(id uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.find(id) != nil
}

// Cancel removes the Done function from the transfer with the given id, ends the transfer's wait
// for its stream, and returns the function, which the caller must call. The transfer stays in the
// queue with a nil Done, because the peer counts it. If no such transfer is queued, or it was
// cancelled before, Cancel returns nil and false.
func (q *Queue) Cancel(id uint64) (done func(error), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.find(id)
	if t == nil || t.Done == nil {
		return nil, false
	}
	done, t.Done = t.Done, nil
	t.CancelWait()
	return done, true
}

func (q *Queue) find(id uint64) *Transfer {
	for i := range q.fifo.Len() {
		if t := q.fifo.At(i); t.ID == id {
			return t
		}
	}
	return nil
}

// Close makes later calls of Push fail, empties the queue, and returns the transfers that were in
// it, in order. The caller must call Done of each unless it is nil. A further Close returns none.
func (q *Queue) Close() []Transfer {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	return q.fifo.Clear()
}
