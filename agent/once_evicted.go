package agent

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"strconv"
	"time"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// keyBytes is what a key takes whose answer is not kept, at most.
const keyBytes = 64

// eviction is why an answer is not kept.
type eviction byte

const (
	evictedForBytes eviction = 1 + iota
	evictedForCount
	evictedUnsent  // it could not be encoded
	evictedUnknown // the key is older than those that are known, or its call has ended
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
		ran, remedy = "may have run", fmt.Sprintf("raise Limits.KeyBytes there, which is %d", limits.KeyBytes)
	}
	return fmt.Errorf("%w: %s %s on %s for this key: %s", ErrEvicted, r.Name(), ran, r.conn.agent.self.Name, remedy)
}

// usedKeys is the keys of one caller for which a function has run, and whose answers are
// not kept. There are two sorts, which together are bounded by Limits.KeyBytes so that no
// function runs twice:
//
// WithRetry numbers its calls, and sends which have ended: their keys are dropped. At the
// limit the oldest keys are dropped, and every number up to the largest that was dropped
// counts as used.
//
// The keys of an application have no order. They are dropped when no request has had them
// for Limits.RetryWindow, up to half of that later. At the limit new ones are refused.
type usedKeys struct {
	numbered map[uint64]eviction
	order    fifo.Queue[uint64] // of numbered, the first to be evicted first
	dropped  uint64             // every number up to this counts as used

	seed  maphash.Seed           // of the sums, which stand for keys of any length
	named [3]map[uint64]eviction // by sum: used in this period, in the one before, and so on
	begun time.Time              // this period, which lasts for half of Limits.RetryWindow
}

// keyID is what usedKeys knows of a key: its number, or the sum of one without.
type keyID struct{ number, sum uint64 }

// appendKey appends a key of WithRetry to dst: the number of the call, and the largest up
// to which all calls of this agent have ended.
func appendKey(dst []byte, number, ended uint64) []byte {
	dst = strconv.AppendUint(append(dst, 'r'), number, 36)
	return strconv.AppendUint(append(dst, '.'), ended, 36)
}

// parseKey reads the key of a request: one of the application, or what appendKey writes.
// The error matches ErrProtocol.
func parseKey(text []byte) (key string, number, ended uint64, err error) {
	if len(text) <= maxName+1 && bytes.HasPrefix(text, []byte("u")) {
		return string(text), 0, 0, nil
	}
	own, rest, _ := bytes.Cut(text, []byte("."))
	if len(text) <= maxName && bytes.HasPrefix(own, []byte("r")) {
		number, err = strconv.ParseUint(string(own[1:]), 36, 64)
		if err == nil {
			ended, err = strconv.ParseUint(string(rest), 36, 64)
		}
		if err == nil && number > ended {
			return string(own), number, ended, nil
		}
	}
	return "", 0, 0, fmt.Errorf("%w: key %.50q of %d bytes", ErrProtocol, text, len(text))
}

// identify returns what stands for a key, which may have a number.
func (k *usedKeys) identify(key runKey, number uint64) keyID {
	if number > 0 {
		return keyID{number: number}
	}
	if k.seed == (maphash.Seed{}) {
		k.seed = maphash.MakeSeed()
	}
	return keyID{sum: maphash.Comparable(k.seed, key)}
}

// admit lets a function run for a key for which neither a run nor an answer is there. The
// error matches ErrEvicted if it may have run before, and ErrOverloaded if there are too
// many keys. These include those of the runs, of which the caller passes the number.
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
	for _, period := range k.named {
		if why := period[id.sum]; why != 0 {
			delete(period, id.sum)
			k.put(id.sum, why)
			return why.err(r)
		}
	}
	if n := k.count() - len(k.numbered) + runs; n >= limits.keys() {
		return fmt.Errorf("%w: %s has used %d keys on %s within %v: raise Limits.KeyBytes there, which is %d, or lower Limits.RetryWindow, which is %v",
			ErrOverloaded, r.conn.peer.Name, n, r.conn.agent.self.Name, limits.RetryWindow*3/2, limits.KeyBytes, limits.RetryWindow)
	}
	return nil
}

// add notes the key of a run whose answer is not kept.
func (k *usedKeys) add(id keyID, why eviction, limits *Limits) {
	switch {
	case id.number == 0:
		k.put(id.sum, why)
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

// put notes a key of the application.
func (k *usedKeys) put(sum uint64, why eviction) {
	if k.named[0] == nil {
		k.named[0] = map[uint64]eviction{}
	}
	k.named[0][sum] = why
}

// drop drops the keys up to a number: these count as used.
func (k *usedKeys) drop(upTo uint64) {
	k.dropped = max(k.dropped, upTo)
	for k.order.Len() > 0 && k.order.Front() <= k.dropped {
		delete(k.numbered, k.order.Pop())
	}
}

// expire drops the keys of the application whose time is over.
func (k *usedKeys) expire(now time.Time, window time.Duration) {
	period := (window + 1) / 2
	for range k.named {
		if now.Sub(k.begun) < period {
			return
		}
		copy(k.named[1:], k.named[:])
		k.named[0] = nil
		k.begun = k.begun.Add(period)
	}
	if now.Sub(k.begun) >= period { // all are dropped
		k.begun = now
	}
}

// count returns the number of keys.
func (k *usedKeys) count() int {
	n := len(k.numbered)
	for _, period := range k.named {
		n += len(period)
	}
	return n
}

// keys returns how many keys Limits.KeyBytes allows.
func (l *Limits) keys() int { return max(l.KeyBytes/keyBytes, 1) }
