package agent

import (
	"fmt"
	"hash/maphash"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// keyBytes is the largest memory of a key whose reply is not kept.
const keyBytes = 64

// eviction is the reason for which a reply is not kept.
type eviction byte

const (
	evictedForBytes eviction = 1 + iota
	evictedForCount
	evictedUnsent  // the reply could not be encoded
	evictedUnknown // the key was dropped, or its call has ended
)

// err returns the error for a request r whose reply is not kept for this reason. It matches
// ErrEvicted. Its text names the limit to raise, or that the reply could not be encoded.
func (why eviction) err(r *Request) error {
	limits := &r.conn.agent.limits
	ran, remedy := "has run", "its reply could not be encoded"
	switch why {
	case evictedForBytes:
		remedy = fmt.Sprintf("raise Limits.RememberedBytes there, which is %d", limits.RememberedBytes)
	case evictedForCount:
		remedy = fmt.Sprintf("raise Limits.MaxRemembered there, which is %d", limits.MaxRemembered)
	case evictedUnknown:
		ran, remedy = "may have run", fmt.Sprintf("raise Limits.KeyBytes there, which is %d", limits.KeyBytes)
	}
	return fmt.Errorf("%w: the function %s for this key: %s", ErrEvicted, ran, remedy)
}

// usedKeys holds the keys of one caller for which a function has run and whose replies are not
// kept. There are two sorts, which together are bounded by Limits.KeyBytes so that no function runs
// twice:
//
// WithRetry numbers its calls, and sends with each call the number up to which all calls have
// ended: the keys of the ended calls are dropped. At the limit the oldest keys are dropped, and
// every number up to the largest one that was dropped counts as used.
//
// The keys of an application have no order. They are dropped when no request has used them for
// Limits.RetryWindow, or up to half of that later. At the limit new ones are rejected.
type usedKeys struct {
	numbered map[uint64]eviction
	order    fifo.Queue[uint64] // the numbers, in the order in which their replies were evicted
	dropped  uint64             // every number up to this counts as used

	seed       maphash.Seed           // of the hashes that identify keys of any length
	unnumbered [3]map[uint64]eviction // by hash: used in this period, the one before, and the one before that
	begun      time.Time              // of this period, which is half of Limits.RetryWindow
}

// keyID identifies a key in usedKeys: by its number, or by its hash if it has none.
type keyID struct{ number, hash uint64 }

// identify returns the identity of a key: number for a key of WithRetry, or a hash of key if
// number is 0. The caller holds the lock of the onceCache.
func (k *usedKeys) identify(key onceKey, number uint64) keyID {
	if number > 0 {
		return keyID{number: number}
	}
	if k.seed == (maphash.Seed{}) {
		k.seed = maphash.MakeSeed()
	}
	return keyID{hash: maphash.Comparable(k.seed, key)}
}

// admit returns nil if the function may run for a key that has neither a run nor a kept reply. The
// error matches ErrEvicted if the function has run or may have run before; a key of the application
// is then remembered for another Limits.RetryWindow. The error matches ErrOverloaded if the caller
// has too many keys of the application; the keys of the runs in the cache, whose number is runs,
// count too. The caller holds the lock of the onceCache.
func (k *usedKeys) admit(id keyID, runs int, r *Request) error {
	limits := &r.conn.agent.limits
	if id.number > 0 {
		if why := k.numbered[id.number]; why != 0 {
			return why.err(r)
		}
		if id.number <= k.dropped {
			return evictedUnknown.err(r)
		}
		return nil
	}
	for _, period := range k.unnumbered {
		if why := period[id.hash]; why != 0 {
			delete(period, id.hash)
			k.addUnnumbered(id.hash, why)
			return why.err(r)
		}
	}
	if n := k.count() - len(k.numbered) + runs; n >= limits.keys() {
		return fmt.Errorf("%w: %s has used %d keys within %v: raise Limits.KeyBytes there, which is %d, or lower Limits.RetryWindow, which is %v",
			ErrOverloaded, r.conn.peer.Name, n, limits.RetryWindow*3/2, limits.KeyBytes, limits.RetryWindow)
	}
	return nil
}

// add adds the key of a run whose reply is not kept, and drops the oldest keys of WithRetry
// beyond the limit. The caller holds the lock of the onceCache.
func (k *usedKeys) add(id keyID, why eviction, limits *Limits) {
	switch {
	case id.number == 0:
		k.addUnnumbered(id.hash, why)
	case id.number > k.dropped:
		if k.numbered == nil {
			k.numbered = map[uint64]eviction{}
		}
		if k.numbered[id.number] == 0 { // a hostile caller gives one number to several functions
			k.order.Push(id.number)
		}
		k.numbered[id.number] = why
	}
	for k.order.Len() > 0 && k.count() > limits.keys() {
		k.drop(k.order.Front())
	}
}

// addUnnumbered adds the hash of a key of the application to the current period, with the reason
// for which its reply is not kept.
func (k *usedKeys) addUnnumbered(hash uint64, why eviction) {
	if k.unnumbered[0] == nil {
		k.unnumbered[0] = map[uint64]eviction{}
	}
	k.unnumbered[0][hash] = why
}

// drop forgets the numbered keys up to the number upTo and their reasons. All numbers up to upTo
// count as used from then on. The caller holds the lock of the onceCache.
func (k *usedKeys) drop(upTo uint64) {
	k.dropped = max(k.dropped, upTo)
	for k.order.Len() > 0 && k.order.Front() <= k.dropped {
		delete(k.numbered, k.order.Pop())
	}
}

// expire drops the keys of the application that were last used more than window before now. It does
// so in periods of half of window, so a key may stay up to half of window longer. The caller holds
// the lock of the onceCache.
func (k *usedKeys) expire(now time.Time, window time.Duration) {
	period := (window + 1) / 2
	for range k.unnumbered {
		if now.Sub(k.begun) < period {
			return
		}
		copy(k.unnumbered[1:], k.unnumbered[:])
		k.unnumbered[0] = nil
		k.begun = k.begun.Add(period)
	}
	if now.Sub(k.begun) >= period { // all are dropped
		k.begun = now
	}
}

// count returns the number of remembered keys whose replies are not kept, those of WithRetry and
// those of the application.
func (k *usedKeys) count() int {
	n := len(k.numbered)
	for _, period := range k.unnumbered {
		n += len(period)
	}
	return n
}

// keys returns the number of keys without kept replies that Limits.KeyBytes allows for one caller,
// at least 1.
func (l *Limits) keys() int { return max(l.KeyBytes/keyBytes, 1) }
