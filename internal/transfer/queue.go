package transfer

import (
	"context"
	"io"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// Queue holds transfers in order, those under way included: one goroutine
// works on the front and pops a transfer when it is through.
type Queue struct {
	arrived chan struct{} // holds a token after a Push, and End

	mu     sync.Mutex
	fifo   fifo.Queue[Transfer]
	closed bool
	ended  bool // nothing will be pushed
}

// NewQueue returns an empty queue.
func NewQueue() *Queue { return &Queue{arrived: make(chan struct{}, 1)} }

// Push adds t behind the others. It returns false once the queue is closed.
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

// End says that there will be no further Push.
func (q *Queue) End() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	q.wake()
}

// Wait returns the front when there is one, or the cause of ctx's end, or io.EOF
// where nothing will come.
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

// Peek returns the transfer i places behind the front.
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

// Pop takes the front out. It is there because Wait or Peek returned it.
func (q *Queue) Pop() Transfer {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.fifo.Pop()
}

// Has reports whether the transfer with that id is waiting or under way.
func (q *Queue) Has(id uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.find(id) != nil
}

// Take takes over the Done of the transfer with that id and gives up its wait
// for the stream. The transfer keeps its place in the queue, without Done, for
// the peer will ask for it.
func (q *Queue) Take(id uint64) (done func(error), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := q.find(id)
	if t == nil || t.Done == nil {
		return nil, false
	}
	done, t.Done = t.Done, nil
	t.GiveUp()
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

// Close refuses further transfers and returns those that are left, which are
// the caller's to finish.
func (q *Queue) Close() []Transfer {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	return q.fifo.Clear()
}
