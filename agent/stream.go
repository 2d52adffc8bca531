package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// ErrSendClosed means that a value was sent on a stream after CloseSend, or after the handler of
// the stream has returned.
var ErrSendClosed = errors.New("stream closed for sending")

// errLoopLeft is the cause with which a caller cancels a stream when it leaves the loop over the
// stream's values.
var errLoopLeft = errors.New("the caller has left the loop over the stream")

// stream is one end of a streaming call, at the caller or at the called worker. The call itself is
// an ordinary one: its request opens the stream, its reply or failure ends it. In between each end
// that sends does so within the credit that the other end grants in bytes.
//
// Messages of a connection may be handled by several goroutines at once, so data have numbers, and
// the reply has the number of data that precede it.
type stream struct {
	conn   *conn
	id     uint64        // of the call
	call   *streamCall   // at the caller
	served *Request      // at the called worker
	limit  time.Duration // of idleness, 0 for none
	window int           // credit of the other end while no data are unread; 0 if this end does not receive

	ctx    context.Context // ends when the stream fails, with the reason as its cause
	cancel context.CancelCauseFunc

	sendLock     sync.Mutex
	value        any          // *T with the value that is being sent, for Send
	batch        []byte       // message with the values that wait to be sent; empty without any
	batchMessage pipe.Message // the same, while it is written
	written      time.Time    // when this end has written last
	answered     uint64       // data received when this end has written last
	batched      atomic.Bool  // the batch is not empty
	flusher      atomic.Bool  // a goroutine that writes the batch has not begun
	flushWanted  atomic.Bool  // the goroutine that holds sendLock must write the batch

	credited    chan struct{} // has an element after a change for which a sender may wait
	receiveLock sync.Mutex
	leader      leader        // of the receiver, while it reads the messages of the connection
	opened      *inMessage    // the batch that is being received, nil for none
	values      []byte        // of that batch, those that were not received
	arrived     chan struct{} // has an element after a change for which a receiver may wait

	mu         sync.Mutex
	credit     int          // for sending, in bytes; negative after a large message
	started    bool         // the other end has granted credit: a called worker does when the handler starts
	sent       uint64       // data sent
	sendClosed bool         // this end sends no more
	peerCredit int          // credit of the other end, in bytes
	unreturned int          // bytes that were consumed and are not part of peerCredit again
	current    int          // bytes of the message that the receiver has, see returnCredit
	large      int          // part of it that is taken from conn.largeBudget
	queue      []*inMessage // received and not consumed, by number
	next       uint64       // number of the data to be consumed next
	admitted   uint64       // number of the next data to be taken from peerCredit, see takeCredit
	received   uint64       // data received
	total      uint64       // number of data that the other end sends, unknownTotal before that is known
	replied    bool         // at the caller: the reply has arrived
	result     error        // at the caller, once replied is set: nil, or the error of the call
	discarded  bool         // data that arrive are dropped

	waiting int         // operations that wait for the other end
	active  time.Time   // while operations wait: when data or credit moved last, or one began to wait
	watch   *time.Timer // fires when the stream may have been idle for the limit
}

// unknownTotal is the total of a stream whose other end may send more.
const unknownTotal = ^uint64(0)

// maxCredit bounds the credit of one stream, in bytes. More is a violation of the protocol.
const maxCredit = maxStreamWindow

// init sets up the stream s with its idle limit, 0 for none, and with window, the credit of the
// other end in bytes, 0 if this end does not receive.
func (s *stream) init(limit time.Duration, window int) {
	s.limit, s.window, s.total = limit, window, unknownTotal
	s.credited, s.arrived = make(chan struct{}, 1), make(chan struct{}, 1)
}

// fail ends the context of the stream with cause, unless that context has ended, and so wakes the
// operations that wait. Then it calls abandon.
func (s *stream) fail(cause error) {
	s.cancel(cause)
	s.abandon()
}

// abandon is called after the context of the stream has ended: it cancels the call, if this
// end is the caller and the call has not ended, and drops the data that are queued or arrive later.
func (s *stream) abandon() {
	if s.call != nil {
		s.call.giveUp(ctxerr.Cause(s.ctx))
	}
	s.discard()
}

// discard drops the queued data and all data that arrive from now on, returns the charge of the
// last message to the budget for large requests, and at the caller removes the stream from the
// table of calls. Further calls do nothing.
func (s *stream) discard() {
	s.mu.Lock()
	queue, large := s.queue, s.large
	s.queue, s.large, s.discarded = nil, 0, true
	s.mu.Unlock()
	if large > 0 {
		s.conn.largeBudget.Release(large)
	}
	for _, in := range queue {
		s.conn.agent.inMessages.drop(in)
	}
	if s.call != nil {
		s.conn.calls.removeStream(s.id)
	}
}

// wrapError returns io.EOF and nil unchanged, and any other err as an *Error that names the
// function and the worker at the other end.
func (s *stream) wrapError(err error) error {
	switch {
	case err == nil || err == io.EOF:
		return err
	case s.call != nil:
		return s.call.wrapError(err)
	}
	return s.served.wrapError(err)
}

// flags returns the flags of the data and credit that this end sends.
func (s *stream) flags() byte {
	if s.call != nil {
		return wire.FlagCaller
	}
	return 0
}

// wait blocks until it has taken an element from woken, or the context of the stream has ended. If
// the stream is idle for its limit during the wait, the stream fails, which ends its context.
func (s *stream) wait(woken <-chan struct{}) {
	defer s.beginWait()()
	select {
	case <-woken:
	case <-s.ctx.Done():
	}
}

// beginWait must be called before an operation waits for the other end; the operation must call end
// after the wait. If the stream is idle for its limit between the two, it fails with a
// *TimeoutError. A handler that waits for a stream which it has opened itself has no slot until end
// is called; one that waits for the stream that it serves keeps its slot.
func (s *stream) beginWait() (end func()) {
	endWait := func() {}
	if s.call != nil {
		endWait = beginWait(s.ctx)
	}
	if s.limit <= 0 {
		return endWait
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting++
	s.active = time.Now()
	if s.watch == nil {
		s.watch = time.AfterFunc(s.limit, s.checkIdle)
	} else if s.waiting == 1 {
		s.watch.Reset(s.limit)
	}
	return func() {
		s.mu.Lock()
		s.waiting--
		if s.waiting == 0 {
			s.watch.Stop()
		}
		s.mu.Unlock()
		endWait()
	}
}

// moved records that data or credit have moved, for the idle limit. The caller holds s.mu.
func (s *stream) moved() {
	if s.waiting > 0 { // otherwise beginWait sets the time
		s.active = time.Now()
	}
}

// checkIdle fails the stream with a *TimeoutError if an operation waits and nothing has moved for
// the limit. Otherwise, if an operation waits, checkIdle runs again when the limit may have passed.
func (s *stream) checkIdle() {
	s.mu.Lock()
	left := s.limit - time.Since(s.active)
	idle := s.waiting > 0 && left <= 0
	if s.waiting > 0 && left > 0 {
		s.watch.Reset(left)
	}
	s.mu.Unlock()
	if idle {
		s.fail(&TimeoutError{Limit: s.limit, Idle: true})
	}
}

// notify adds an element to c, a channel for one element, unless it has one.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// handleData passes data to its stream, or drops them if the stream has ended. If the peer violates
// the protocol, handleData aborts the pipe. It owns in. It does not block: data that are not inline
// are read by the receiver.
func (c *conn) handleData(in *inMessage) {
	s, err := c.findStream(&in.head)
	if s == nil {
		c.agent.inMessages.drop(in)
	} else {
		err = s.accept(in)
	}
	if err != nil {
		c.pipe.Abort(err)
	}
}

// handleCredit adds the credit that the message in grants to its stream, unless the stream has
// ended. It owns in. If the peer violates the protocol, handleCredit aborts the pipe.
func (c *conn) handleCredit(in *inMessage) {
	s, err := c.findStream(&in.head)
	if s != nil {
		err = s.addCredit(in.head.Credit)
	}
	c.agent.inMessages.drop(in)
	if err != nil {
		c.pipe.Abort(err)
	}
}

// findStream returns the stream to which a message with the head h belongs, or nil if the stream is
// unknown or has ended. The error matches ErrProtocol if there is a call with the number in h that
// is not a stream; the stream is then nil.
func (c *conn) findStream(h *wire.Head) (*stream, error) {
	var s *stream
	known := false
	if h.Flags&wire.FlagCaller != 0 {
		c.mu.Lock()
		r := c.serving[h.ID]
		if known = r != nil; known {
			s = r.stream
		}
		c.mu.Unlock()
	} else {
		s, known = c.calls.findStream(h.ID)
	}
	if known && s == nil {
		return nil, fmt.Errorf("%w: %v for a call that is not a stream", ErrProtocol, h.Kind)
	}
	return s, nil
}
