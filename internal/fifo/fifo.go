// Package fifo is a queue in memory that it uses again, so that a steady flow
// through it allocates nothing.
package fifo

// slack is the number of places at the front that may lie empty before the
// elements move up.
const slack = 64

// Queue holds elements in the order in which they came. The zero value is
// empty. It is not safe for concurrent use.
type Queue[E any] struct {
	items []E
	head  int // index of the front
}

// Len is the number of elements.
func (q *Queue[E]) Len() int { return len(q.items) - q.head }

// At returns the element i places behind the front, valid until the queue
// changes. There must be one.
func (q *Queue[E]) At(i int) *E { return &q.items[q.head+i] }

// Front returns the oldest element. There must be one.
func (q *Queue[E]) Front() E { return q.items[q.head] }

// Push adds e behind the others.
func (q *Queue[E]) Push(e E) {
	// Moving up only when more than half is empty makes each element move
	// less than once on average.
	if q.head > slack && 2*q.head > len(q.items) {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, e)
}

// Pop takes the oldest element out. There must be one.
func (q *Queue[E]) Pop() E {
	var none E
	e := q.items[q.head]
	q.items[q.head] = none
	q.head++
	if q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return e
}

// Remove takes out the oldest element that match accepts, and reports whether
// there was one. The others keep their order.
func (q *Queue[E]) Remove(match func(E) bool) bool {
	for i := q.head; i < len(q.items); i++ {
		if match(q.items[i]) {
			var none E
			copy(q.items[i:], q.items[i+1:])
			q.items[len(q.items)-1] = none
			q.items = q.items[:len(q.items)-1]
			return true
		}
	}
	return false
}

// Clear takes everything out, in order.
func (q *Queue[E]) Clear() []E {
	rest := q.items[q.head:]
	q.items, q.head = nil, 0
	return rest
}
