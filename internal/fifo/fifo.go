// Package fifo implements a queue that reuses its memory, so that a steady flow through it
// allocates nothing.
package fifo

// slack is the number of elements at the front that may be empty before the others are moved up.
const slack = 64

// Queue holds elements in the order in which they were added. The zero value is empty. It is not
// safe for concurrent use.
type Queue[E any] struct {
	items []E
	head  int // index of the front
}

// Len returns the number of elements.
func (q *Queue[E]) Len() int { return len(q.items) - q.head }

// At returns a pointer to the element i positions after the oldest one, in the memory of the queue.
// That element must exist. The pointer is valid until the queue changes.
func (q *Queue[E]) At(i int) *E { return &q.items[q.head+i] }

// Front returns the oldest element, which stays in the queue. The queue must not be empty.
func (q *Queue[E]) Front() E { return q.items[q.head] }

// Push adds e as the newest element.
func (q *Queue[E]) Push(e E) {
	// Elements are moved up only when more than half is empty, so that each moves
	// less than once on average.
	if q.head > slack && 2*q.head > len(q.items) {
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, e)
}

// Pop removes the oldest element and returns it. The queue must not be empty.
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

// Remove removes the oldest element for which match returns true, and reports whether there was
// one. The other elements keep their order.
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

// Clear removes all elements and returns them in order, nil or empty if there are none. The caller
// owns the slice.
func (q *Queue[E]) Clear() []E {
	rest := q.items[q.head:]
	q.items, q.head = nil, 0
	return rest
}
