package transfer

import (
	"context"
	"io"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// Queue holds transfers in order, including those in progress: one goroutine processes the transfer at
// the front and pops it when it is complete. All methods may be called concurrently, Wait and Pop by
// that goroutine only.
type Queue struct {
	arrived chan struct{} // signals a Push or End

	mu     sync.Mutex
	fifo   fifo.Queue[Transfer]
	closed bool
	ended  bool // nothing more will be pushed
}

// NewQueue returns an empty queue.
func NewQueue() *Queue { return &Queue{arrived: make(chan struct{}, 1)} }

// Push appends t and wakes Wait. After Close it returns false: the caller must then complete t.
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

// End announces that nothing more will be pushed: Wait returns io.EOF once the queue is empty.
func (q *Queue) End() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	q.wake()
}

// Wait blocks until the queue is not empty and returns a copy of its front, which stays in the queue.
// It returns the cause of ctx after its end, and io.EOF if the queue is empty after End. Only one
// goroutine may wait.
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

// Peek returns a copy of the i-th transfer of the queue, counted from the front at 0. It returns false
// if there are fewer.
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

// Pop removes the front, which Wait or Peek must have returned, and returns it. Done is nil if the
// transfer was cancelled meanwhile; otherwise the caller must call it.
func (q *Queue) Pop() Transfer {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.fifo.Pop()
}

// Has reports whether a transfer with that id is queued or in progress.
func (q *Queue) Has(id uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.find(id) != nil
}

// Cancel takes Done from the transfer with that id and returns it; the caller must call it. The
// transfer stays in the queue without Done, because the peer will use it, and the wait for its stream
// ends. ok is false if there is no such transfer, or it has been cancelled.
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

// Close prevents further pushes, empties the queue and returns what was in it. The caller must
// complete these transfers, except those whose Done is nil.
func (q *Queue) Close() []Transfer {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	return q.fifo.Clear()
}
