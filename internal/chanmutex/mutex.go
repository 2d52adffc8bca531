// Package chanmutex provides a mutex on a channel, for locks that are held during
// operations that may block, such as a write to a peer that does not read.
//
// A sync.Mutex would stop tests in virtual time: a bubble of testing/synctest does not
// advance its clock while one of its goroutines waits for a sync.Mutex. A goroutine that
// waits for a channel of the bubble does not stop it.
package chanmutex

// Mutex is a mutual exclusion lock. Goroutines acquire it in the order in which they
// called Lock. Create one with New: Lock of the zero Mutex blocks forever.
type Mutex chan struct{}

// New returns an unlocked Mutex.
func New() Mutex { return make(Mutex, 1) }

// Lock blocks until the mutex is available, and locks it.
func (m Mutex) Lock() { m <- struct{}{} }

// TryLock locks the mutex if it is available, and reports whether it did.
func (m Mutex) TryLock() bool {
	select {
	case m <- struct{}{}:
		return true
	default:
		return false
	}
}

// Unlock unlocks the mutex. If the mutex is not locked, Unlock blocks until it is.
func (m Mutex) Unlock() { <-m }
