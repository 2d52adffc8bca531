package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/budget"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// conn is a pipe to another worker whose ends know each other. Calls of both
// workers travel on it.
type conn struct {
	agent   *Agent
	owner   *peer
	peer    WorkerInfo
	pipe    *pipe.Pipe
	calls   calls          // of this end
	room    *budget.Budget // of the calls of this end, in bytes
	back    ways           // of answers
	large   *budget.Budget // of large calls of the other end, in bytes
	lead    sync.Mutex     // of the caller who looks for answers himself
	ahead   sync.Mutex     // of the one who sleeps ahead of the reader
	reading sync.WaitGroup // messages that have come and are read by others
	reader  reader

	mu          sync.Mutex
	serving     map[uint64]*Request // of the other end
	taken       int                 // bytes of these
	early       earlyCancels
	backlog     backlog
	nestedLarge int           // bytes of those that are large and made by handlers
	down        chan struct{} // closed when the pipe is of no use any more
}

func (a *Agent) newConn(line *pipe.Pipe, p *peer, t terms) *conn {
	c := &conn{
		agent: a, owner: p, peer: p.info, pipe: line,
		room:    budget.New(min(max(t.room, 1), a.limits.CallBytes)),
		back:    wayBack(t.routes),
		large:   budget.New(a.limits.LargeBytes),
		backlog: backlog{most: int64(a.limits.AnswerBytes)},
		serving: map[uint64]*Request{},
		down:    make(chan struct{}),
	}
	a.conns.Store(c, nil)
	return c
}

// read has a goroutine take in all that comes, until the pipe ends. It reports false if
// the agent is closed. It comes before anybody else has the conn, who might excuse the
// goroutine.
func (c *conn) read() bool {
	a := c.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed.Load() {
		return false
	}
	a.work.Add(1)
	a.log.Debug("pipe up", "peer", c.peer.Name, "address", c.pipe.RemoteAddr())
	go c.readOn(&shift{conn: c})
	return true
}

// readOn takes in what comes, in a shift of its own.
func (c *conn) readOn(s *shift) {
	passed, ended := false, false
	defer func() {
		switch {
		case passed: // the shift is another goroutine's
		case ended:
			c.excuse()
		case !s.over: // a Short handler has called runtime.Goexit
			go c.readOn(&shift{conn: c})
		}
	}()
	s.pass.begun()
	for !s.over {
		in, err := c.pipe.Next(context.Background())
		if err != nil {
			ended = true
			c.end(err)
			return
		}
		c.dispatch(in, s)
		if r := s.next; r != nil {
			passed = true
			s.passOn()
			r.seeTo()
			return
		}
	}
}

// lookAtOnce is how many messages a caller takes in before he looks at his context.
const lookAtOnce = 64

// lookFor takes in what comes for as long as that comes at once and own has no
// answer, if nobody else does. The answer then comes without a change of goroutines.
func (c *conn) lookFor(own *call) bool {
	if !c.lead.TryLock() {
		return false
	}
	own.shift = shift{lock: &c.lead}
	defer own.shift.end()
	for range lookAtOnce {
		in := c.pipe.Poll(context.Background())
		if in == nil {
			return false
		}
		c.dispatch(in, &own.shift)
		select {
		case <-own.woken:
			return true
		default:
		}
		if own.shift.over {
			return false
		}
	}
	return false
}

// dispatch sees to one message in a shift. What may take long goes to another goroutine.
func (c *conn) dispatch(in *pipe.Incoming, s *shift) {
	c.reader.busy.Add(1)
	defer c.reader.busy.Add(-1)
	if c.agent.isClosed() {
		_ = in.Discard(context.Background()) // the pipe is about to end
		return
	}
	a, err := c.agent.arrivals.get(in)
	if err != nil {
		c.pipe.Abort(err)
		return
	}
	switch a.head.kind {
	case request:
		c.serve(a, s)
	case reply, failure:
		c.answered(a, s)
	case cancel:
		c.cancel(a)
	}
}

// answered hands an answer to who waits for it, even if an allocator ends the goroutine.
// One that comes too late goes by.
func (c *conn) answered(a *arrival, s *shift) {
	call := c.calls.take(a.head.id)
	if call == nil {
		c.agent.stats.late.Add(1)
		c.agent.arrivals.drop(a)
		return
	}
	defer call.settle(a, nil, s)
	if a.immediate() {
		_ = c.agent.arrivals.receive(c.agent.base, a) // whoever takes it gets the error
	} else {
		a.readElsewhere(&c.reading)
	}
}

// end is called once, when the pipe is down.
func (c *conn) end(cause error) {
	close(c.down)
	err := c.lost(cause)
	c.agent.log.Debug("pipe down", "peer", c.peer.Name, "error", err)
	c.owner.detach(c)
	all := c.endCalls(err)
	c.agent.conns.Delete(c)
	for _, call := range all {
		call.settle(nil, err, nil)
	}
	for _, r := range c.stopServing() {
		r.cancel(marked(ErrCallerGone, err))
	}
	c.part(cause)
	if c.owner.isClient() && c.owner != c.agent.own {
		c.agent.spawn(func() { c.agent.lostClient(c.owner) })
	}
}

// endCalls empties the table of calls. A caller may have an answer in hand that came
// before the end.
func (c *conn) endCalls(err error) map[uint64]*call {
	c.lead.Lock()
	defer c.lead.Unlock()
	c.ahead.Lock()
	defer c.ahead.Unlock()
	return c.calls.end(err)
}

// part ends this end of the pipe as the other one was ended. What either has sent last
// still arrives where that was in an orderly way.
func (c *conn) part(cause error) {
	switch {
	case errors.Is(cause, pipe.ErrPeerClosed):
		c.reading.Wait()
		if err := c.pipe.Close(); err != nil {
			c.agent.log.Debug("pipe not closed in order", "peer", c.peer.Name, "error", err)
		}
	case errors.Is(cause, pipe.ErrClosed): // somebody is closing it
	default:
		c.pipe.Abort(cause)
	}
}

// lost is what calls fail with when the pipe is down.
func (c *conn) lost(cause error) error {
	if c.agent.isClosed() {
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, cause)
}

// stopServing empties the table of requests.
func (c *conn) stopServing() map[uint64]*Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.serving
	c.serving = nil
	return all
}

// writeNow sends what e holds and takes it back, where nobody has to wait for that: it
// is small and there is room for it, or a test has decided what becomes of it. It
// reports false if write is still to be called.
func (c *conn) writeNow(e *envelope) (done bool, err error) {
	if c.agent.outgoing != nil {
		done, err = c.suffer(&e.about, &e.message)
	}
	if !done && e.small() {
		done, err = c.pipe.TryWrite(&e.message)
	}
	if done = done || err != nil; done {
		c.agent.envelopes.put(e)
	}
	return done, err
}

// write is writeNow that waits.
func (c *conn) write(ctx context.Context, e *envelope) error {
	err := c.pipe.Write(ctx, &e.message)
	c.agent.envelopes.put(e)
	return err
}

// tell sends a message without a body. It does not wait: who gives up a call wants to
// go on.
func (c *conn) tell(m *pipe.Message) {
	// A pipe that is down has its reader to say so.
	if taken, err := c.pipe.TryWrite(m); !taken && err == nil {
		go func() { _ = c.pipe.Write(context.Background(), m) }()
	}
}
