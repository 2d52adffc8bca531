package pipe

import (
	"context"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/quota"
)

// maxReadRequests bounds the messages for which a peer may request a confirmation at once.
const maxReadRequests = 1 << 16

// entryMemory is the memory of a map entry whose key is a number, in bytes.
const entryMemory = 64

// confirmer tracks which messages have been read: the messages of this end whose confirmation calls
// wait for, and the messages of the peer that this end must confirm. Messages are numbered from 0 in
// each direction. The struct that embeds it sends the frames, with what nextConfirmation and nextQuery
// return.
type confirmer struct {
	signal  func()         // wakes the writer of control frames
	account *quota.Account // counts the entries of requested

	mu sync.Mutex

	// Messages of this end.
	queries  fifo.Queue[uint64]       // numbers for which a request must be sent
	waiters  map[uint64]chan struct{} // closed when the peer has read the message
	peerRead uint64                   // the peer has read all lower numbers

	// Messages of the peer.
	confirmed   uint64              // all lower numbers have been confirmed
	confirmable uint64              // all lower numbers must be confirmed
	requested   map[uint64]struct{} // unread messages whose confirmation the peer has requested
	read        uint64              // all lower numbers have been read
	readEarly   intervalSet         // higher numbers that have been read
}

func (c *confirmer) init(signal func(), account *quota.Account) {
	c.signal, c.account = signal, account
	c.waiters = map[uint64]chan struct{}{}
	c.requested = map[uint64]struct{}{}
}

// handleRequest handles the peer's request to confirm its message with this number: at once if the
// message has been read, and otherwise when it is read. If the peer has too many requests open the
// error matches ErrProtocol.
func (c *confirmer) handleRequest(number uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case number < c.read:
		c.confirmable, c.confirmed = c.read, min(c.confirmed, number)
		c.signal()
	case len(c.requested) >= maxReadRequests:
		return protocolError("%w", limitError("requested confirmations", maxReadRequests+1, maxReadRequests))
	default:
		if _, again := c.requested[number]; !again {
			c.requested[number] = struct{}{}
			c.account.Add(entryMemory)
		}
	}
	return nil
}

// handleConfirmation handles the peer's confirmation that it has read the message of this end with this
// number and all earlier ones. Calls of await for these messages return.
func (c *confirmer) handleConfirmation(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peerRead = max(c.peerRead, number, number+1) // the highest number has no successor
	for n, read := range c.waiters {
		if n <= number {
			delete(c.waiters, n)
			close(read)
		}
	}
}

// noteRead records that the application has read or discarded the peer's message with this number. It
// is called once for each message. Messages are confirmed in order, and only up to the last one whose
// confirmation was requested.
func (c *confirmer) noteRead(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if number != c.read {
		c.readEarly.add(number)
		return
	}
	c.advance()
	for end := c.readEarly.removeRun(c.read); c.read < end; {
		c.advance()
	}
}

// advance records that the next message in order has been read, and makes it confirmable if the peer
// has requested that. The caller holds mu.
func (c *confirmer) advance() {
	_, requested := c.requested[c.read]
	delete(c.requested, c.read)
	c.read++
	if requested {
		c.account.Release(entryMemory)
		c.confirmable = c.read
		c.signal()
	}
}

// nextConfirmation returns the number for the next confirmation frame, which confirms that message
// and all before it, and counts these as confirmed. ok is false if there is nothing to confirm.
func (c *confirmer) nextConfirmation() (number uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.confirmed >= c.confirmable {
		return 0, false
	}
	c.confirmed = c.confirmable
	return c.confirmable - 1, true
}

// nextQuery removes and returns the number of a message of this end for which a request for
// confirmation must be sent. ok is false if there is none.
func (c *confirmer) nextQuery() (number uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queries.Len() == 0 {
		return 0, false
	}
	return c.queries.Pop(), true
}

// await requests the confirmation of the message of this end with this number and waits for it. It
// returns true once the message is confirmed, false and the cause if ctx ends first, and false and
// nil if ended or down is closed first.
func (c *confirmer) await(ctx context.Context, number uint64, ended, down <-chan struct{}) (bool, error) {
	c.mu.Lock()
	if number < c.peerRead {
		c.mu.Unlock()
		return true, nil
	}
	read := make(chan struct{})
	c.waiters[number] = read
	c.queries.Push(number)
	c.mu.Unlock()
	c.signal()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiters, number)
	}()
	select {
	case <-read:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-down:
	case <-ended:
	}
	return isClosed(read), nil // true if it was the last frame of the peer
}

// releaseRequests drops the peer's open requests, because the pipe has ended. It does not release
// their bytes from the account; the caller closes that.
func (c *confirmer) releaseRequests() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requested = map[uint64]struct{}{}
}

// unconfirmed returns the error for a message that was sent and not confirmed. It matches
// ErrUnconfirmed and cause.
func (p *Pipe) unconfirmed(conn string, cause error) error {
	return p.errorFor("write", conn, fmt.Errorf("%w: %w", ErrUnconfirmed, cause))
}

// intervalSet is a set of numbers, stored as intervals: while one message is being read for a long
// time, the later messages that have been read take little memory. The zero intervalSet is empty.
type intervalSet struct {
	ends   map[uint64]uint64 // the end of each interval, exclusive, by its start
	starts map[uint64]uint64 // the start of each interval, by its end
}

// add adds n, which must not be in the set.
func (r *intervalSet) add(n uint64) {
	if r.ends == nil {
		r.ends, r.starts = map[uint64]uint64{}, map[uint64]uint64{}
	}
	start, end := n, n+1
	if first, ok := r.starts[n]; ok {
		start = first
		delete(r.starts, n)
	}
	if next, ok := r.ends[n+1]; ok {
		end = next
		delete(r.ends, n+1)
	}
	r.ends[start], r.starts[end] = end, start
}

// removeRun removes the interval that starts with n, and returns the first number after it. If no
// interval starts with n it removes nothing and returns n.
func (r *intervalSet) removeRun(n uint64) (end uint64) {
	end, ok := r.ends[n]
	if !ok {
		return n
	}
	delete(r.ends, n)
	delete(r.starts, end)
	return end
}
