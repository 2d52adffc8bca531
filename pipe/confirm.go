package pipe

import (
	"context"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
	"github.com/tensorpipe-go/tensorpipe/internal/quota"
)

// maxWanted bounds the messages that a peer may ask to be told about at once.
const maxWanted = 1 << 16

// entryMemory is what an entry of a map takes, with a number for its key.
const entryMemory = 64

// confirmer keeps account of which messages have been read, at both ends: those
// that this end waits for, and those that the peer asked about.
type confirmer struct {
	signal  func()         // wakes the writer of the control stream
	account *quota.Account // counts the entries of wanted

	mu     sync.Mutex
	asks   fifo.Queue[uint64]       // messages of this end to ask about
	told   uint64                   // all below have been confirmed to the peer,
	tell   uint64                   // and all below are to be
	asked  map[uint64]chan struct{} // what this end waits for; closed when read
	known  uint64                   // all of this end's below were read by the peer
	wanted map[uint64]struct{}      // what the peer waits for
	read   uint64                   // all messages below were read here
	early  runs                     // messages above that were read before others
}

func (c *confirmer) init(signal func(), account *quota.Account) {
	c.signal, c.account = signal, account
	c.asked = map[uint64]chan struct{}{}
	c.wanted = map[uint64]struct{}{}
}

// want notes that the peer waits for a message to be read.
func (c *confirmer) want(number uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case number < c.read:
		c.tell, c.told = c.read, min(c.told, number)
		c.signal()
	case len(c.wanted) >= maxWanted:
		return protocolError("%w", limitError("messages to be told about", maxWanted+1, maxWanted))
	default:
		if _, again := c.wanted[number]; !again {
			c.wanted[number] = struct{}{}
			c.account.Add(entryMemory)
		}
	}
	return nil
}

// confirm ends the wait for a message of this end and for all before it.
func (c *confirmer) confirm(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = max(c.known, number, number+1) // the highest number has no successor
	for n, asked := range c.asked {
		if n <= number {
			delete(c.asked, n)
			close(asked)
		}
	}
}

// noteRead is called when the application has read or discarded a message. The
// peer is told about messages in order, and only about those it waits for.
func (c *confirmer) noteRead(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if number != c.read {
		c.early.add(number)
		return
	}
	c.noteNext()
	for end := c.early.take(c.read); c.read < end; {
		c.noteNext()
	}
}

func (c *confirmer) noteNext() {
	_, wanted := c.wanted[c.read]
	delete(c.wanted, c.read)
	c.read++
	if wanted {
		c.account.Release(entryMemory)
		c.tell = c.read
		c.signal()
	}
}

// tellAll has the peer told about all that was read, also what it has not asked
// about: its question may be under way when this end says its last word.
func (c *confirmer) tellAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tell = c.read
}

// toTell takes the number of a message that the peer is to be told about, with
// all before it.
func (c *confirmer) toTell() (number uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told >= c.tell {
		return 0, false
	}
	c.told = c.tell
	return c.tell - 1, true
}

// toAsk takes the number of a message to ask the peer about.
func (c *confirmer) toAsk() (number uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asks.Len() == 0 {
		return 0, false
	}
	return c.asks.Pop(), true
}

// await asks the peer about a message of this end, and waits until it has read
// it. It reports false if the peer has ended or the pipe is down.
func (c *confirmer) await(ctx context.Context, number uint64, ended, down <-chan struct{}) (bool, error) {
	asked, known := c.ask(number)
	if known {
		return true, nil
	}
	c.signal()
	defer c.forget(number)
	select {
	case <-asked:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-down:
	case <-ended:
	}
	select {
	case <-asked: // the last thing that the peer said
		return true, nil
	default:
		return false, nil
	}
}

func (c *confirmer) ask(number uint64) (asked chan struct{}, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if number < c.known {
		return nil, true
	}
	asked = make(chan struct{})
	c.asked[number] = asked
	c.asks.Push(number)
	return asked, false
}

func (c *confirmer) forget(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.asked, number)
}

// end releases what only questions of the peer need, which asks no more.
func (c *confirmer) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wanted = map[uint64]struct{}{}
}

// unconfirmed is the error of a message of which it is not known whether the
// peer read it.
func (p *Pipe) unconfirmed(conn string, cause error) error {
	return p.errorFor("write", conn, fmt.Errorf("%w: %w", ErrUnconfirmed, cause))
}
