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
// wait for, and the messages of the peer that this end must confirm. Messages are numbered from 0
// in each direction. It sends nothing itself: the struct that embeds it sends the frames, whose
// numbers nextConfirmation and nextQuery return.
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

// handleRequest handles the peer's request to confirm the peer's message with this number. If the
// application has read that message and all earlier ones, handleRequest wakes the writer, which
// sends the confirmation. Otherwise it stores the request until they are read. If the peer has
// maxReadRequests stored requests already, it returns an error that matches ErrProtocol. It locks
// c.mu.
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

// handleConfirmation records the peer's confirmation that it has read the message of this end with
// this number and all earlier ones, and wakes the calls of await for these messages. It locks c.mu.
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

// noteRead records that the application has read or discarded the peer's message with this number.
// It is called once for each message, in any order. If now a message whose confirmation the peer
// has requested and all earlier messages have been read, noteRead wakes the writer, which sends the
// confirmation. It locks c.mu.
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

// advance records that the message with the number c.read has been read, and raises c.read by one.
// If the peer has requested the confirmation of that message, advance releases the memory charged
// for the request and wakes the writer, which sends the confirmation. The caller holds c.mu.
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

// nextConfirmation returns the number for the next confirmation frame and true. The frame confirms
// the peer's message with that number and all earlier ones, which nextConfirmation counts as
// confirmed. ok is false if there is nothing to confirm.
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

// await waits until the peer has confirmed that it has read this end's message with this number,
// and requests the confirmation unless it has arrived already. It returns true and nil once the
// message is confirmed, false and the cause if ctx ends first, and false and nil if ended or down
// is closed first. There must be only one call at a time for a number. The request is not withdrawn
// if await returns early.
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

// releaseRequests drops the peer's requests that have not been answered, because the pipe has
// ended. It does not release their bytes from the account, which the caller closes.
func (c *confirmer) releaseRequests() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requested = map[uint64]struct{}{}
}

// unconfirmed returns an *Error for a message that was sent and not confirmed. It matches
// ErrUnconfirmed and cause. conn names the connection that is at fault, and may be empty.
func (p *Pipe) unconfirmed(conn string, cause error) error {
	return p.errorFor("write", conn, fmt.Errorf("%w: %w", ErrUnconfirmed, cause))
}

// intervalSet is a set of numbers, stored as intervals: while one message is being read for a long
// time, the later messages that have been read take little memory. The zero intervalSet is empty.
type intervalSet struct {
	ends   map[uint64]uint64 // the end of each interval, exclusive, by its start
	starts map[uint64]uint64 // the start of each interval, by its end
}

// add adds n to the set, which must not contain n. It merges n with the intervals that end just
// before n or begin just after n.
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
