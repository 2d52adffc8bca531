package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/internal/wait"
)

// serve handles in, the message of a request, on the leader l, and owns it. A small request is read
// here, and its handler runs here if it is short; other requests are detached. A duplicate is
// dropped, a request beyond the limits or without a handler is rejected.
func (c *conn) serve(in *inMessage, l *leader) {
	r := c.newRequest(in)
	err := c.register(r)
	if err != errDuplicate {
		c.agent.reportServeStarted(r)
	}
	switch {
	case err == errDuplicate: // the request that came first gets the reply
		c.agent.stats.duplicateRequests.Add(1)
		r.drop()
	case err != nil:
		r.drop()
		c.rejectOverload(r, err)
	case r.handler.Handler == nil:
		r.drop()
		c.reject(r, r.handler.missing(), l)
	case !in.isInline():
		in.deferRead(&c.readers)
		l.detach(r)
	default:
		c.open(r, l)
	}
}

// newRequest returns the request of a message, which the request then owns, with its handler, its
// charge, and its deadline, which a stream does not have. It is not registered. Its Handler is nil
// if this worker does not serve the function or type.
func (c *conn) newRequest(in *inMessage) *Request {
	h := &in.head
	r := &Request{conn: c, id: h.ID, flags: h.Flags, message: in, begun: time.Now()}
	r.parent = c.agent.base
	r.ctx = r
	e, ok := c.agent.handlers.lookup(h.Type, h.Name)
	if !ok {
		e = handlerEntry{typ: string(h.Type), name: string(h.Name)}
	}
	if r.limit = h.Timeout; isStreamType(e.typ) {
		r.stream = newServedStream(r, &e)
	} else if h.Timeout > 0 {
		r.deadline = r.begun.Add(h.Timeout)
	}
	r.handler, r.charge = e, callOverhead+len(in.incoming.Descriptor().Metadata)
	if in.isInline() {
		r.charge += in.incoming.Descriptor().Bytes()
	}
	return r
}

// drop discards the message of a request whose values will not be decoded, and returns it to its
// pool. The request itself goes on.
func (r *Request) drop() {
	r.conn.agent.inMessages.drop(r.message)
	r.message = nil
}

// open reads and decodes a registered request, and starts its handler. If an interceptor holds the
// request, another goroutine starts the handler when the wait of the interceptor has returned. A
// request that cannot be decoded, or whose wait fails, is rejected. l is the leader on which open
// runs.
func (c *conn) open(r *Request, l *leader) {
	if err := c.decodeAsLeader(r, l); err != nil {
		c.reject(r, err, l)
		return
	}
	if r.hold == nil {
		c.start(r, l)
		return
	}
	r.stage.Store(uint32(ServedHeld))
	go func() { // it has no slot while an interceptor holds it
		if err := catchPanic(func() error { return r.hold(r.ctx) }); err != nil {
			c.reject(r, err, nil)
			return
		}
		c.start(r, nil)
	}()
	wait.GoroutineStarted() // and perhaps one of the interceptor
}

// decodeAsLeader runs decode on the leader l and returns the error of decode. l yields if a
// function of the application waits. If such a function ends the goroutine, the request is
// rejected.
func (c *conn) decodeAsLeader(r *Request, l *leader) error {
	returned := false
	defer func() {
		r.slot.setLeader(nil)
		if !returned {
			c.reject(r, errGoexit, nil)
		}
	}()
	r.slot.setLeader(l)
	err := c.decode(r)
	returned = true
	return err
}

// decode reads the message of a request, runs the interceptors, and calls Open of the handler,
// which decodes the values and returns the task. It returns the message to the pool. The error,
// with which the caller rejects the request, matches ErrArguments or ErrProtocol, or is that of an
// interceptor or of the handler; a panic is a *PanicError.
func (c *conn) decode(r *Request) (err error) {
	in := r.message
	defer func() {
		r.message = nil
		c.agent.inMessages.put(in)
		if v := recover(); v != nil {
			err = &PanicError{Value: fmt.Sprint(v)}
		}
		if err != nil {
			r.delegate.Store(nil)
			r.requestEnds.run(MessageHandled, err)
		}
	}()
	in.view = Message{Kind: KindRequest, Type: r.handler.typ, Name: r.handler.name, Peer: c.peer, decoder: in.decoder, key: r.callKey(), ends: &r.requestEnds}
	if in.dst = newDestination(r, r.handler.place); in.dst != nil {
		defer in.dst.end(nil)
	}
	if err := c.agent.inMessages.receive(r, in); err != nil {
		return withKind(ErrArguments, err)
	}
	if d := c.agent.devices; len(d.kinds) > 0 {
		if err := catchPanic(func() error { return d.withStreams(r, in) }); err != nil {
			return withKind(ErrArguments, err)
		}
	}
	if r.handler.borrows {
		r.borrowed = slices.Clone(in.storages)
	}
	if r.ctx, err = c.agent.runReceived(r.ctx, &in.view); err != nil {
		return err
	}
	if key, ok := in.decoder.Header(wire.KeyHeader); ok && r.handler.once {
		if r.key, r.number, r.ended, err = wire.ParseKey(key); err != nil {
			return err
		}
	}
	if r.task, err = r.handler.Open(r); err != nil {
		return err
	}
	err = c.agent.runDecoded(r.ctx, &in.view)
	r.hold = in.view.hold
	return err
}

// start launches a decoded request. If the handler runs already for the key of the request, the
// request waits for that reply instead. If the reply was evicted, or there are too many keys, the
// request is rejected. l is nil on a goroutine that does not lead.
func (c *conn) start(r *Request, l *leader) {
	if r.key != "" {
		launch, err := c.owner.onceCache.start(r)
		if err != nil {
			c.reject(r, err, l)
			return
		}
		if !launch {
			return
		}
	}
	c.launch(r, l)
}

// launch runs the task of a request once earlier replies were sent and, unless the task is short,
// there is a slot. Until then the request is queued and launch returns. l is nil on a goroutine
// that does not lead.
func (c *conn) launch(r *Request, l *leader) {
	if c.backlog.enqueue(r) {
		return
	}
	if r.short() {
		r.slot.setLeader(l)
		r.run()
		return
	}
	r.stage.Store(uint32(ServedQueued))
	c.agent.slots.start(r, l)
}

// short reports whether the task of the request runs on the leader, without a slot.
func (r *Request) short() bool {
	t, ok := r.task.(ShortTask)
	return r.handler.short || ok && t.Short()
}

// handleCancel cancels the context of the request to which in, a cancellation, belongs. If no such
// request is registered, handleCancel keeps the cancellation, since the request may still arrive.
// It owns in.
func (c *conn) handleCancel(in *inMessage) {
	cause := fmt.Errorf("%w: %s", ErrCallerGone, in.head.Reason)
	c.mu.Lock()
	r := c.serving[in.head.ID]
	if r == nil {
		c.earlyCancels.add(in.head.ID, cause)
	}
	c.mu.Unlock()
	c.agent.inMessages.drop(in)
	if r != nil {
		r.callContext.cancel(cause)
	}
}

// RejectedTask is a Task whose request may be rejected after Open has returned the task: Rejected is
// then called with the error, in place of Run. It must not block, and does not reply.
type RejectedTask interface {
	Task
	Rejected(err error)
}

// rejection is the task of a request that does not reach its handler. Like other tasks it
// runs once earlier replies were sent.
type rejection struct{ err error }

// Run implements Task: it replies to the request with the error of the rejection.
func (t rejection) Run(_ context.Context, r *Request) { _ = r.Fail(t.err) } // nothing else replies

// Short implements ShortTask.
func (rejection) Short() bool { return true }

// reject replies with err to a registered request that does not reach its handler, and logs it.
// The reply waits for earlier ones, as that of a handler does. l is nil on a goroutine that does
// not lead.
func (c *conn) reject(r *Request, err error, l *leader) {
	level, stack := slog.LevelDebug, ""
	if p, ok := errors.AsType[*PanicError](err); ok { // of an allocator, an interceptor or Handler.Open
		level, stack = slog.LevelError, p.Stack
	}
	c.agent.log.Log(r, level, "call rejected", "function", r.Name(), "caller", c.peer.Name, "error", err, "stack", stack)
	if t, ok := r.task.(RejectedTask); ok {
		t.Rejected(err)
	}
	r.task = rejection{err}
	c.launch(r, l)
}

// rejectOverload replies with err to a request that was not registered because its caller exceeds
// the limits. It aborts the pipe if the caller does not read replies either.
func (c *conn) rejectOverload(r *Request, err error) {
	if n := c.backlog.bytes.Load(); n >= c.backlog.maxBytes {
		c.pipe.Abort(fmt.Errorf("%w: %s does not read replies of %d bytes, and makes more calls than were agreed on", ErrOverloaded, c.peer, n))
	}
	c.agent.log.Debug("call rejected", "function", r.Name(), "caller", c.peer.Name, "error", err)
	_ = r.Fail(err) // nothing else replies
}
