package agent

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/device"
)

// call is a call of this worker. From add to remove it is in the table of its conn; the
// goroutine that removes it completes it.
type call struct {
	conn      *conn
	to        To
	id        uint64
	typ, name string
	begun     time.Time
	limit     time.Duration
	nested    bool // made by a handler, or by an interceptor of a reply
	charge    int  // bytes taken from the conn's callBudget
	dst       *destination

	ends    messageEnds    // of the request
	outcome MessageOutcome // of the request, so far

	requestBytes, replyBytes int    // for events; replyBytes is set only for these
	eventNumber              uint64 // in events

	requestSent atomic.Bool
	sendBegun   bool // the request could not be sent without blocking

	// unordered is the error of a stream that does not wait for the copies of the arguments, if the call
	// has ended before the sender of the request could fail it.
	unordered atomic.Pointer[error]

	// Of a large request that another goroutine sends: the context of that, and a channel that
	// is closed when it has ended. The memory of the arguments is in use until then.
	sendContext *callContext
	sendEnded   chan struct{}

	// A call either has an observer, which gets its end, or one goroutine waits for it: that
	// one receives from completed once reply or err is set.
	observer  observer
	completed chan struct{}
	reply     *inMessage
	err       error
	timer     *time.Timer     // for the limit; made when first needed
	leader    leader          // while the goroutine that waits reads messages
	streams   []device.Stream // on which the tensors of the result are valid

	stream *stream // nil unless the call is a stream
}

// observer is notified of the end of a call for which no goroutine waits.
type observer interface {
	// callEnded is called once, with the reply in, which it owns, or with an error. l is the
	// leader on which it runs, nil on another goroutine; on a leader it must not block.
	callEnded(in *inMessage, err error, l *leader)
}

// complete ends a call, which the caller must have removed from the table, with in, the reply, or
// with err, and returns the bytes of the call to the budget. The reply passes to the goroutine that
// waits or to the observer. If another goroutine still sends the request, the observer is called
// after that, because the memory of the arguments is free only then. l is the leader on which
// complete runs, nil on a goroutine that does not lead.
func (c *call) complete(in *inMessage, err error, l *leader) {
	c.releaseCharge()
	switch {
	case c.observer == nil:
		c.reply, c.err = in, err
		c.completed <- struct{}{}
	case c.sendEnded == nil:
		c.observer.callEnded(in, err, l)
	default:
		select {
		case <-c.sendEnded:
			c.observer.callEnded(in, err, l)
		default: // another goroutine sends the request
			go func() {
				<-c.sendEnded
				c.observer.callEnded(in, err, nil)
			}()
		}
	}
}

// endSend records that the request of the call was sent, or will not be. For a request that is sent
// in the background, it ends the context of the sending and wakes the goroutines that wait until
// the memory of the arguments is free; for other requests it does nothing. It is called once for
// each request.
func (c *call) endSend() {
	if c.sendEnded != nil {
		c.sendContext.finish()
		close(c.sendEnded)
	}
}

// releaseCharge returns the charge of the call to the budget of its connection. Only the
// goroutine that ends the call may call it, once.
func (c *call) releaseCharge() {
	if c.charge > 0 {
		c.conn.callBudget.Release(c.charge)
	}
}

// callTable holds the calls of one conn that have not ended.
type callTable struct {
	mu      sync.Mutex
	pending map[uint64]*call
	streams map[uint64]*stream // calls that are streams, until the reply and all data have arrived
	err     error              // set once the pipe has ended: why there can be no more calls
	lastID  atomic.Uint64
}

// closeReason returns the error with which the table was closed, or nil if it is open.
func (t *callTable) closeReason() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// add adds the call c to the table, before its request is sent, and returns the number of calls in
// the table. If the table was closed, it adds nothing and returns 0 and the error with which the
// table was closed.
func (t *callTable) add(c *call) (pending int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return 0, t.err
	}
	if t.pending == nil {
		t.pending = map[uint64]*call{}
	}
	t.pending[c.id] = c
	if c.stream != nil {
		if t.streams == nil {
			t.streams = map[uint64]*stream{}
		}
		t.streams[c.id] = c.stream
	}
	return len(t.pending), nil
}

// remove removes the call with the given number from the table and returns it. It returns nil if
// there is no such call in the table. The caller must end the returned call.
func (t *callTable) remove(id uint64) *call {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.pending[id]
	delete(t.pending, id)
	return c
}

// withdraw removes the call with the given number from the table because its request cannot be
// sent, and returns it. If the call is a stream, withdraw removes the stream too. It returns nil if
// there is no such call. The caller must end the returned call.
func (t *callTable) withdraw(id uint64) *call {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.pending[id]
	if c != nil {
		delete(t.pending, id)
		delete(t.streams, id)
	}
	return c
}

// findStream returns the stream with the given number, nil if there is none for which data may
// still arrive. known reports whether there is such a stream, or a call with the number in the
// table that need not be a stream.
func (t *callTable) findStream(id uint64) (s *stream, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s = t.streams[id]; s != nil {
		return s, true
	}
	return nil, t.pending[id] != nil
}

// removeStream removes the stream with the given number from those for which data may arrive. It
// does nothing if there is none.
func (t *callTable) removeStream(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.streams, id)
}

// takeStreams removes and returns all streams for which data may arrive, by their numbers.
func (t *callTable) takeStreams() map[uint64]*stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.streams
	t.streams = nil
	return all
}

// close closes the table with err, and removes and returns all calls by their numbers. The caller
// must end these calls. Later calls of add fail with the err of the first close.
func (t *callTable) close(err error) map[uint64]*call {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
	}
	all := t.pending
	t.pending = nil
	return all
}
