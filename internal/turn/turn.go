// Package turn lets goroutines take turns at something that may take long, such
// as a write to a peer that does not read.
//
// A mutex would do, but for tests in virtual time: a bubble of testing/synctest
// stands still while one of its goroutines waits for a mutex, because nobody
// can tell who will unlock it. Waiting for a channel of the bubble is fine.
package turn

// Turn is held by one goroutine at a time, in the order of asking. It comes
// from New.
type Turn chan struct{}

// New returns a Turn that nobody holds.
func New() Turn { return make(Turn, 1) }

// Take waits until nobody else holds the turn.
func (t Turn) Take() { t <- struct{}{} }

// TryTake takes the turn if nobody holds it, and reports whether it did.
func (t Turn) TryTake() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

// Give ends the turn of its holder.
func (t Turn) Give() { <-t }
