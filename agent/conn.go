package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/pprof"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
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

	inlinePart int // most bytes of a part that the leader reads itself, see inMessage.isInline

	// Of the calls that this worker makes.
	calls      callTable
	callBudget *budget.Budget // bytes of requests that have no reply yet

	streamBudget *budget.Budget // bytes of large data of streams that the other end has not read

	// Of reading. A caller or receiver that leads holds one of the locks, see leader.
	pollLock sync.Mutex     // while it polls
	waitLock sync.Mutex     // while it waits
	readers  sync.WaitGroup // goroutines that read the contents of a message
	reader   readerState
	quick    quickWatch

	// Of the calls of the other worker.
	replyRoute  tensorRoute    // of the tensors in replies
	largeBudget *budget.Budget // bytes of large requests
	backlog     backlog

	mu               sync.Mutex
	serving          map[uint64]*Request // not replied to yet; nil once the pipe has ended
	servingBytes     int                 // their charges
	servingStreams   int                 // number of those that are streams
	nestedLargeBytes int                 // bytes of large requests that handlers make
	earlyCancels     earlyCancels
}

func (a *Agent) newConn(pp *pipe.Pipe, p *peer, t peerTerms) *conn {
	c := &conn{
		agent: a, owner: p, peer: p.info, pipe: pp,
		inlinePart:   cmp.Or(pp.Plan().Inline, math.MaxInt),
		callBudget:   budget.New(min(max(t.callBytes, 1), a.limits.CallBytes)),
		replyRoute:   tensorRoute{reply: true, inverse: replyDevices(t.routes)},
		largeBudget:  budget.New(a.limits.LargeBytes),
		streamBudget: budget.New(max(a.limits.LargeBytes/4, 1)),
		backlog:      backlog{maxBytes: int64(a.limits.AnswerBytes)},
		serving:      map[uint64]*Request{},
		down:         make(chan struct{}),
	}
	c.quick.init(c)
	a.conns.Store(c, nil)
	return c
}

// startReading starts the read loop of the connection on a new goroutine, reports PeerConnected and
// returns true. If the agent is closed it does nothing and returns false. Close waits for the loop
// until releaseReader is called. startReading must be called before another goroutine can use the
// conn, because that goroutine could call releaseReader. The caller must not hold the mu of the
// agent.
func (c *conn) startReading() bool {
	a := c.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed.Load() {
		return false
	}
	a.work.Add(1)
	if a.events.PeerConnected != nil {
		a.events.PeerConnected(PeerConnectedInfo{c.peer, c.pipe.RemoteAddr(), c.pipe.Plan()})
	}
	a.log.Debug("pipe up", "peer", c.peer.Name, "address", c.pipe.RemoteAddr())
	go c.readLoop(&leader{conn: c})
	return true
}

// startLoop starts a read loop in place of one that has yielded. The goroutine does not keep the profile
// labels of the one that calls it, which may run a handler.
func (c *conn) startLoop() {
	go func() {
		pprof.SetGoroutineLabels(context.Background())
		c.readLoop(&leader{conn: c})
	}()
}

// readLoop reads messages of the pipe and dispatches them as the leader l. When the pipe ends,
// readLoop calls c.end and releaseReader. It returns earlier if l yields. If a dispatched message
// leaves a request in l.detached, readLoop promotes another goroutine to read, unless the request is
// quick, and runs that request itself. If the other goroutine has not started when the request has
// ended, readLoop goes on, and otherwise returns. After a quick request it returns if another read
// loop has started in its place. If a short handler ends the goroutine, another read loop starts.
func (c *conn) readLoop(l *leader) {
	promoted, ended := false, false
	defer func() {
		switch {
		case promoted || l.passed: // another goroutine reads
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
		if r := l.detached; r != nil && l.quick {
			l.detached, l.quick = nil, false
			if l.runQuick(r); l.passed {
				return
			}
		} else if r != nil {
			promoted = true
			yielded := l.yielded
			turn := l.promote()
			r.runDetached()
			if yielded || !l.takeTurn(turn) {
				return
			}
			promoted = false
			l.handover.observe()
		}
	}
}

// dispatch handles one message, which it owns, on the leader l. It does not block: large messages
// and handlers that are not short run on other goroutines. An invalid message aborts the pipe. If
// the agent is closed, dispatch discards the message.
func (c *conn) dispatch(incoming *pipe.Incoming, l *leader) {
	c.reader.dispatching.Add(1)
	defer c.reader.dispatching.Add(-1)
	if c.agent.isClosed() {
		_ = incoming.Discard(context.Background()) // the pipe is about to end
		return
	}
	in, err := c.agent.inMessages.get(incoming, c.inlinePart)
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
	case wire.KindData:
		c.handleData(in)
	case wire.KindCredit:
		c.handleCredit(in)
	}
}

// handleReply completes the call to which the reply or failure in belongs, even if an allocator
// ends the goroutine. It reads an inline message before that; a larger one is read later by the
// goroutine that decodes it. If the call has ended, handleReply drops in and counts a late reply.
// It owns in, and passes it to the call.
func (c *conn) handleReply(in *inMessage, l *leader) {
	call := c.calls.remove(in.head.ID)
	if call == nil {
		c.agent.stats.lateReplies.Add(1)
		c.agent.inMessages.drop(in)
		return
	}
	defer call.complete(in, nil, l)
	ctx := c.agent.base
	if call.dst != nil && in.head.Kind == KindReply {
		ctx, in.dst = call.dst.ctx, call.dst
		in.view = Message{Kind: KindReply, Type: call.typ, Name: call.name, Peer: c.peer, decoder: in.decoder, key: call.key(), ends: &in.ends}
	}
	if in.isInline() {
		_ = c.agent.inMessages.receive(ctx, in) // it keeps the error for the caller
	} else {
		in.deferRead(&c.readers)
	}
}

// end ends the connection after the pipe has ended with cause. It reports PeerLost, removes the
// connection from its peer, whose state may change, and from the agent, fails all calls and streams
// on it, and cancels the contexts of its requests. Then it closes this end of the pipe: in order,
// which may block, if the other end has closed in order, and otherwise at once; a pipe that this
// end has closed it leaves as it is. If the peer is a client, end starts removeLostClient. The read
// loop calls end once.
func (c *conn) end(cause error) {
	err := c.lostError(cause)
	if c.agent.events.PeerLost != nil {
		c.agent.events.PeerLost(PeerLostInfo{c.peer, c.pipe.RemoteAddr(), err})
	}
	c.agent.log.Debug("pipe down", "peer", c.peer.Name, "error", err)
	c.owner.pipeEnded(c, cause)
	close(c.down)
	c.quick.timer.Stop()
	c.pollLock.Lock() // a caller that leads may hold a reply that came before the end
	c.waitLock.Lock()
	calls := c.calls.close(err)
	c.waitLock.Unlock()
	c.pollLock.Unlock()
	c.agent.conns.Delete(c)
	if c.owner != c.agent.selfPeer {
		traffic := c.pipe.Stats()
		c.agent.stats.sentBytes.Add(traffic.Sent.Bytes)
		c.agent.stats.receivedBytes.Add(traffic.Received.Bytes)
	}
	for _, call := range calls {
		call.complete(nil, err, nil)
	}
	for _, s := range c.calls.takeStreams() { // whose data will not arrive, although the reply has
		s.fail(err)
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

// sendError returns err, which is not nil, as the error of sending: that of a stream, after which the
// pipe goes on, unchanged, and otherwise as the error of a lost pipe.
func (c *conn) sendError(err error) error {
	if isStreamError(err) {
		return err
	}
	return c.lostError(err)
}

// isStreamError reports whether err, the result of sending, is that of a stream of a device and not of the
// pipe.
func isStreamError(err error) bool {
	_, failed := errors.AsType[*future.StreamError](err)
	_, panicked := errors.AsType[*PanicError](err)
	return failed || panicked
}
