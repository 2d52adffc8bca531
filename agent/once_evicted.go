package agent

import (
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// keysPerAnswer is how many keys of each sort are known for each answer that
// Limits.Remembered allows. A key takes some 80 bytes.
const keysPerAnswer = 64

// eviction is why an answer is not kept.
type eviction byte

const (
	evictedForBytes eviction = 1 + iota
	evictedForCount
	evictedUnsent  // it could not be encoded
	evictedUnknown // the key is older than those that are known
)

// err returns the error for a request whose answer is not kept.
func (why eviction) err(r *Request) error {
	limits := &r.conn.agent.limits
	ran, remedy := "has run", "its answer could not be encoded"
	switch why {
	case evictedForBytes:
		remedy = fmt.Sprintf("raise Limits.RememberedBytes there, which is %d", limits.RememberedBytes)
	case evictedForCount:
		remedy = fmt.Sprintf("raise Limits.Remembered there, which is %d", limits.Remembered)
	case evictedUnknown:
		ran, remedy = "may have run", fmt.Sprintf("raise Limits.Remembered there, which is %d", limits.Remembered)
	}
	return fmt.Errorf("%w: %s %s on %s for this key: %s", ErrEvicted, r.Name(), ran, r.conn.agent.self.Name, remedy)
}

// evictedKeys is the keys of one caller for which a function has run, and whose answers
// are not kept. There are two sorts, and each is bounded so that no function runs twice:
//
// WithRetry numbers its keys. The oldest are dropped, and every number up to the largest
// that was dropped counts as used.
//
// The keys of an application have no order. They are dropped Limits.RetryWindow after
// they came last. While their number is at its limit, new ones are refused.
type evictedKeys struct {
	seed maphash.Seed // of the sums, which stand for keys of any length
	born time.Time    // from which times count
	sums map[uint64]evictedKey

	numbered fifo.Queue[numberedKey] // the oldest first
	dropped  uint64                  // the largest number of those that were dropped

	named  int                  // keys of the application, with those whose answers are kept or not there yet
	expiry fifo.Queue[expiring] // of those that are in sums
}

type evictedKey struct {
	until time.Duration // for a key of the application
	why   eviction
}

type numberedKey struct{ sum, number uint64 }

type expiring struct {
	sum   uint64
	until time.Duration // or later, if the key has come again
}

// keyNumber returns the number of a key that WithRetry made, 0 for any other.
func keyNumber(key string) uint64 {
	digits, ok := strings.CutPrefix(key, "r")
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(digits, 36, 64)
	if err != nil {
		return 0
	}
	return n
}

// admit lets a function run for a key for which neither a run nor an answer is there. The
// error matches ErrEvicted if it may have run before, and ErrOverloaded if there are too
// many keys.
func (k *evictedKeys) admit(key runKey, number uint64, r *Request) error {
	if k.sums == nil {
		k.seed, k.born, k.sums = maphash.MakeSeed(), r.begun, map[uint64]evictedKey{}
	}
	limits := &r.conn.agent.limits
	now := r.begun.Sub(k.born)
	k.expire(now)
	sum := maphash.Comparable(k.seed, key)
	if old, ok := k.sums[sum]; ok {
		k.sums[sum] = evictedKey{max(old.until, now+limits.RetryWindow), old.why}
		return old.why.err(r)
	}
	switch {
	case number > 0 && number <= k.dropped:
		return evictedUnknown.err(r)
	case number == 0 && k.named >= limits.keys():
		return fmt.Errorf("%w: %s has used %d keys on %s within %v: raise Limits.Remembered there, or lower Limits.RetryWindow",
			ErrOverloaded, r.conn.peer.Name, k.named, r.conn.agent.self.Name, limits.RetryWindow)
	case number == 0:
		k.named++
	}
	return nil
}

// forget takes back admit for a run that counts as none.
func (k *evictedKeys) forget(number uint64) {
	if number == 0 {
		k.named--
	}
}

// add notes the key of a run whose answer is not kept.
func (k *evictedKeys) add(own *run, limits *Limits) {
	sum := maphash.Comparable(k.seed, own.key)
	if own.number > 0 {
		k.sums[sum] = evictedKey{why: own.evicting}
		k.numbered.Push(numberedKey{sum, own.number})
		for k.numbered.Len() > limits.keys() {
			oldest := k.numbered.Pop()
			delete(k.sums, oldest.sum)
			k.dropped = max(k.dropped, oldest.number)
		}
		return
	}
	until := own.last.Sub(k.born) + limits.RetryWindow
	k.sums[sum] = evictedKey{until, own.evicting}
	k.expiry.Push(expiring{sum, until})
}

// expire drops the keys of the application whose time is over.
func (k *evictedKeys) expire(now time.Duration) {
	for k.expiry.Len() > 0 && k.expiry.Front().until <= now {
		sum := k.expiry.Pop().sum
		if until := k.sums[sum].until; until > now {
			k.expiry.Push(expiring{sum, until})
			continue
		}
		delete(k.sums, sum)
		k.named--
	}
}

// keys returns how many keys of each sort are known.
func (l *Limits) keys() int { return keysPerAnswer * l.Remembered }
