package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/budget"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// conn is a pipe to another worker, or from this worker to itself, after the handshake. It
// carries the calls of both ends.
type conn struct {
	agent *Agent
	owner *peer
	peer  WorkerInfo
	pipe  *pipe.Pipe
	down  chan struct{} // closed when the pipe has ended

	// Of the calls that this worker makes.
	calls      callTable
	callBudget *budget.Budget // bytes of requests that have no reply yet

	// Of reading. A caller that leads holds one of the locks, see leader.
	pollLock sync.Mutex     // while it polls
	waitLock sync.Mutex     // while it waits
	readers  sync.WaitGroup // goroutines that read the contents of a message
	reader   readerState

	// Of the calls of the other worker.
	replyMap    deviceRoutes   // devices of the tensors in replies
	largeBudget *budget.Budget // bytes of large requests
	backlog     backlog

	mu               sync.Mutex
	serving          map[uint64]*Request // not replied to yet; nil once the pipe has ended
	servingBytes     int                 // their charges
	nestedLargeBytes int                 // bytes of large requests that handlers make
	earlyCancels     earlyCancels
}

func (a *Agent) newConn(pp *pipe.Pipe, p *peer, t peerTerms) *conn {
	c := &conn{
		agent: a, owner: p, peer: p.info, pipe: pp,
		callBudget:  budget.New(min(max(t.callBytes, 1), a.limits.CallBytes)),
		replyMap:    replyDevices(t.routes),
		largeBudget: budget.New(a.limits.LargeBytes),
		backlog:     backlog{maxBytes: int64(a.limits.AnswerBytes)},
		serving:     map[uint64]*Request{},
		down:        make(chan struct{}),
	}
	a.conns.Store(c, nil)
	return c
}

// startReading starts the read loop and returns true. If the agent is closed it returns false. It
// must be called before another goroutine can use the conn, because that goroutine could call
// releaseReader.
func (c *conn) startReading() bool {
	a := c.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed.Load() {
		return false
	}
	a.work.Add(1)
	if a.events.PeerConnected != nil {
		a.events.PeerConnected(PeerConnectedInfo{c.peer, c.pipe.RemoteAddr()})
	}
	a.log.Debug("pipe up", "peer", c.peer.Name, "address", c.pipe.RemoteAddr())
	go c.readLoop(&leader{conn: c})
	return true
}

// readLoop reads and dispatches messages as the leader l until the pipe ends, l yields, or it
// promotes another goroutine to read and runs a detached request itself. When the pipe ends it
// calls c.end.
func (c *conn) readLoop(l *leader) {
	promoted, ended := false, false
	defer func() {
		switch {
		case promoted: // another goroutine reads
		case ended:
			c.releaseReader()
		case !l.yielded: // a short handler has called runtime.Goexit
			go c.readLoop(&leader{conn: c})
		}
	}()
	l.handover.observe()
	for !l.yielded {
		in, err := c.pipe.Next(context.Background())
		if err != nil {
			ended = true
			c.end(err)
			return
		}
		c.dispatch(in, l)
		if r := l.detached; r != nil {
			promoted = true
			l.promote()
			r.runDetached()
			return
		}
	}
}

// maxPolls bounds the messages that a caller reads before it checks its context.
const maxPolls = 64

// pollFor reads messages without blocking until call has ended, and reports whether it has. It
// returns false once no message is there, after maxPolls messages, if a handler made it yield, or
// if another caller polls. A reply that is read here needs no switch to the goroutine of the
// caller.
func (c *conn) pollFor(call *call) bool {
	if !c.pollLock.TryLock() {
		return false
	}
	call.leader = leader{lock: &c.pollLock}
	defer call.leader.finish()
	for range maxPolls {
		in, _ := c.pipe.TryNext() // the read loop gets the error too
		if in == nil {
			return false
		}
		c.dispatch(in, &call.leader)
		select {
		case <-call.completed:
			return true
		default:
		}
		if call.leader.yielded {
			return false
		}
	}
	return false
}

// dispatch handles one message, which it owns, on the leader l. It does not block: whatever may
// take long runs on another goroutine. An invalid message aborts the pipe; after Close messages
// are discarded.
func (c *conn) dispatch(incoming *pipe.Incoming, l *leader) {
	c.reader.dispatching.Add(1)
	defer c.reader.dispatching.Add(-1)
	if c.agent.isClosed() {
		_ = incoming.Discard(context.Background()) // the pipe is about to end
		return
	}
	in, err := c.agent.inMessages.get(incoming)
	if err != nil {
		c.pipe.Abort(err)
		return
	}
	switch in.head.Kind {
	case KindRequest:
		c.serve(in, l)
	case KindReply, KindFailure:
		c.handleReply(in, l)
	case KindCancel:
		c.handleCancel(in)
	}
}

// handleReply completes the call to which a reply or a failure belongs, even if an allocator ends
// the goroutine. It reads an inline reply first; a larger one is read by the goroutine that
// decodes it. A reply to a call that has ended is discarded.
func (c *conn) handleReply(in *inMessage, l *leader) {
	call := c.calls.remove(in.head.ID)
	if call == nil {
		c.agent.stats.lateReplies.Add(1)
		c.agent.inMessages.drop(in)
		return
	}
	defer call.complete(in, nil, l)
	if in.isInline() {
		_ = c.agent.inMessages.receive(c.agent.base, in) // it keeps the error for the caller
	} else {
		in.deferRead(&c.readers)
	}
}

// end fails all calls of the connection and cancels all its requests, after the pipe has ended
// with cause. It clears the connection from its peer and closes this end of the pipe. The read
// loop calls it once.
func (c *conn) end(cause error) {
	close(c.down)
	err := c.lostError(cause)
	if c.agent.events.PeerLost != nil {
		c.agent.events.PeerLost(PeerLostInfo{c.peer, c.pipe.RemoteAddr(), err})
	}
	c.agent.log.Debug("pipe down", "peer", c.peer.Name, "error", err)
	c.owner.clearConn(c)
	c.pollLock.Lock() // a caller that leads may hold a reply that came before the end
	c.waitLock.Lock()
	calls := c.calls.close(err)
	c.waitLock.Unlock()
	c.pollLock.Unlock()
	c.agent.conns.Delete(c)
	for _, call := range calls {
		call.complete(nil, err, nil)
	}
	c.mu.Lock()
	requests := c.serving
	c.serving = nil
	c.mu.Unlock()
	for _, r := range requests {
		r.cancel(withKind(ErrCallerGone, err))
	}
	switch {
	case errors.Is(cause, pipe.ErrPeerClosed):
		// The other end has closed in order: the last messages of both must arrive.
		c.readers.Wait()
		if err := c.pipe.Close(); err != nil {
			c.agent.log.Debug("pipe not closed in order", "peer", c.peer.Name, "error", err)
		}
	case errors.Is(cause, pipe.ErrClosed): // another goroutine closes it
	default:
		c.pipe.Abort(cause)
	}
	if c.owner.isClient() && c.owner != c.agent.selfPeer {
		c.agent.spawn(func() { c.agent.removeLostClient(c.owner) })
	}
}

// lostError returns the error of calls after the pipe has ended with cause: ErrClosed if this
// agent is closed, otherwise an error that matches ErrUnreachable and cause.
func (c *conn) lostError(cause error) error {
	if c.agent.isClosed() {
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, cause)
}
