package agent

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/internal/fifo"
)

// Reply replies to the request with the values to which ptrs point; the caller of the function
// decodes them in the same order. It does not wait until the reply was sent, which AfterReply
// reports. The values must not change until then, except those of a reply of up to 64 KiB in host
// memory, which is sent or copied when Reply returns. If a value cannot be encoded, the caller gets
// an error, which Reply returns as well. The error of Reply matches ErrResult, also if the request
// has been replied to before.
func (r *Request) Reply(ptrs ...any) error {
	if len(ptrs) == 1 && r.keep(ptrs[0], nil) {
		return nil
	}
	if err := r.claim(); err != nil {
		return err
	}
	out, err := r.encode(KindReply, ptrs...)
	if err != nil {
		err = withKind(ErrResult, err)
		r.replyEnds.run(MessageUnsent, err)
		r.replyFailure(err)
		return err
	}
	r.sendReply(KindReply, out)
	return nil
}

// Fail replies to the request with err, which must not be nil. The caller gets the same error if
// the error is registered at both ends, and otherwise one with its type and text. Fail does not
// wait until the reply was sent. Its own error is nil, or matches ErrResult if the request has been
// replied to before.
func (r *Request) Fail(err error) error {
	if r.keep(nil, err) {
		return nil
	}
	if claimed := r.claim(); claimed != nil {
		return claimed
	}
	if r.once != nil && r.Err() != nil {
		r.abandonRun()
	}
	r.replyFailure(err)
	return nil
}

// replyFailure replies to the request with err, or with the text of err if err cannot be encoded.
// If that fails too, it logs the failure, aborts the pipe and ends the request. The calling
// goroutine must have claimed the right to reply with claim.
func (r *Request) replyFailure(err error) {
	if r.event != nil {
		r.event.Err = err
	}
	if p, ok := err.(*future.PanicError); ok && p != nil { // of a callback of a future
		err = &PanicError{Value: fmt.Sprint(p.Value), Stack: string(p.Stack)}
	}
	stack := ""
	if p, ok := err.(*PanicError); ok && r.flags&wire.FlagStack != 0 {
		stack = p.Stack
	}
	out, failed := r.encode(KindFailure, &err, &stack)
	if failed != nil {
		r.replyEnds.run(MessageUnsent, failed)
		text := fmt.Errorf("%v (which cannot be encoded: %v)", err, failed)
		out, failed = r.encode(KindFailure, &text, &stack)
	}
	if failed != nil {
		r.replyEnds.run(MessageUnsent, failed)
		r.conn.agent.log.Error("no reply", "function", r.Name(), "caller", r.conn.peer.Name, "error", failed)
		r.sendReply(KindFailure, nil)
		r.conn.pipe.Abort(failed)
		r.close(failed)
		return
	}
	r.sendReply(KindFailure, out)
}

// encode encodes a reply of kind k with the values to which ptrs point. The message comes from the
// agent's pool, and passes to the caller; after an error it must not be used. The error is that of
// encodeValues. A panic of a method of a value, such as that of an error that is a nil pointer,
// becomes a *PanicError.
func (r *Request) encode(k Kind, ptrs ...any) (out *outMessage, err error) {
	a := r.conn.agent
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: fmt.Sprint(v), Stack: string(debug.Stack())}
			a.outMessages.put(out)
			out = nil
		}
	}()
	out = a.outMessages.get()
	out.begin(wire.AppendReply(out.buf[:0], k, r.id))
	out.route = r.conn.replyRoute
	out.view = Message{Kind: k, Type: r.handler.typ, Name: r.handler.name, Peer: r.conn.peer, encoder: out.encoder, key: r.callKey(), ends: &r.replyEnds, kept: r.once != nil}
	if r.stream != nil {
		out.encoder.SetHeader(wire.CountHeader, wire.AppendNumber(nil, r.stream.endSending()))
	}
	if err := a.encodeValues(r.ctx, out, ptrs...); err != nil {
		a.outMessages.put(out)
		return nil, err
	}
	return out, nil
}

// send sends out, the reply to the request, and owns it. It ends the request once the reply was
// sent. It does not block, because it may run on the leader of a connection, and the pipe may only
// get space when the other end reads or when this end has read its messages.
func (r *Request) send(out *outMessage) {
	if r.event != nil {
		r.event.ReplyBytes = out.bytes()
	}
	c := r.conn
	done, err := c.tryWrite(out)
	switch {
	case done:
		r.replySent(err)
	case out.small():
		// A copy frees the charge of a large request before the pipe has space: the space may be
		// taken by calls that wait for the same budget at the other end.
		n := out.bytes()
		copied, err := copyMessage(&out.message, c.agent.devices)
		if err != nil {
			r.sendInBackground(n, true, func() error { return c.write(context.Background(), out) })
			return
		}
		unordered := c.agent.outMessages.sent(out, nil)
		r.freeMemory()
		r.sendInBackground(n, true, func() error { return cmp.Or(c.pipe.Write(context.Background(), copied), unordered) })
	default:
		r.sendInBackground(out.bytes(), false, func() error { return c.write(context.Background(), out) })
	}
}

// sendInBackground runs write, which sends a reply of n bytes, on another goroutine, and then ends
// the request and starts queued ones. The reply counts in the backlog of the connection until write
// has returned; small is whether the reply is a small message, see outMessage.small.
func (r *Request) sendInBackground(n int, small bool, write func() error) {
	c := r.conn
	c.backlog.add(n, small)
	go func() {
		r.replySent(write())
		c.backlog.remove(n, small)
		c.resume()
	}()
}

// replySent ends a request after its reply was sent with the result err. If err is not nil, the
// reply is lost: replySent logs that, and ends the request all the same.
func (r *Request) replySent(err error) {
	if err != nil {
		r.conn.agent.log.Debug("reply lost", "function", r.Name(), "caller", r.conn.peer.Name, "error", err)
		if r.event != nil {
			r.event.Err = err
		}
		err = r.conn.sendError(err)
	}
	r.close(err)
}

// backlog counts the replies of one connection that have not been sent: small ones for which
// the pipe has no space, and large ones, most of which are sent when the other end reads them. While there
// are such replies it queues requests, so that no more replies are made than the other end reads.
type backlog struct {
	maxBytes int64        // bytes of replies from which on no request starts
	bytes    atomic.Int64 // of all replies, with replyOverhead for each
	small    atomic.Int64 // number of small replies
	mu       sync.Mutex   // held while replies are removed, and while requests are queued or taken
	queues   [4]requestQueue
}

// requestQueue holds requests that have not started.
type requestQueue = fifo.Queue[*Request]

// replyOverhead is roughly the memory of a reply in the backlog in addition to its bytes,
// most of which is a goroutine.
const replyOverhead = 4 << 10

// add counts a reply of that many bytes, which is small or large, as not sent.
func (b *backlog) add(bytes int, small bool) {
	b.bytes.Add(int64(bytes) + replyOverhead)
	if small {
		b.small.Add(1)
	}
}

// remove reverts a call of add with the same arguments, once the reply was sent or lost.
func (b *backlog) remove(bytes int, small bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes.Add(-int64(bytes) - replyOverhead)
	if small {
		b.small.Add(-1)
	}
}

// isFull reports whether a request must wait for replies to be sent. large is true for a request
// that holds memory for large requests: such a request can start in spite of small unsent replies,
// because the space for these may be taken by calls that wait for the same memory at the other end.
func (b *backlog) isFull(large bool) bool {
	return b.bytes.Load() >= b.maxBytes || !large && b.small.Load() > 0
}

// queue returns the queue for requests with these properties: large ones hold memory for large
// requests, short ones have a short task.
func (b *backlog) queue(large, short bool) *requestQueue {
	i := 0
	if large {
		i = 1
	}
	if short {
		i += 2
	}
	return &b.queues[i]
}

// enqueue queues a request and returns true if the backlog is full; resume starts the request
// later. It returns false if the request can start now.
func (b *backlog) enqueue(r *Request) bool {
	large := r.largeCharge+r.nestedCharge > 0
	if !b.isFull(large) {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isFull(large) {
		return false
	}
	r.stage.Store(uint32(ServedQueued))
	b.queue(large, r.short()).Push(r)
	return true
}

// ready returns a queue whose first request can start, or nil if there is none. If short is true it
// looks at the requests with a short task, otherwise at the others. The caller holds b.mu.
func (b *backlog) ready(short bool) *requestQueue {
	for _, large := range [...]bool{true, false} {
		if q := b.queue(large, short); q.Len() > 0 && !b.isFull(large) {
			return q
		}
	}
	return nil
}

// hasReady reports whether a queued request can start: one with a short task if short is true,
// otherwise one of the others. It locks b.mu.
func (b *backlog) hasReady(short bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ready(short) != nil
}

// next removes and returns a queued request that can start, or nil if there is none. If short is
// true it takes one with a short task, otherwise one of the others. It locks b.mu.
func (b *backlog) next(short bool) *Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	if q := b.ready(short); q != nil {
		return q.Pop()
	}
	return nil
}

// resume starts queued requests until none is left or the backlog is full again. Those with a short
// task run one after the other on another goroutine; for each other one resume blocks until a slot
// is free, and then runs it on a goroutine of its own.
func (c *conn) resume() {
	b, s := &c.backlog, &c.agent.slots
	if b.hasReady(true) {
		go c.resumeShort()
	}
	for b.hasReady(false) {
		s.acquire()
		r := b.next(false)
		if r == nil {
			s.release()
			return
		}
		go s.run(r)
	}
}

// resumeShort runs the queued requests that are short, which need no slot, until none can start.
// If a handler ends the goroutine, resumeShort continues on another one.
func (c *conn) resumeShort() {
	done := false
	defer func() {
		if !done {
			go c.resumeShort() // a short handler has called runtime.Goexit
		}
	}()
	for r := c.backlog.next(true); r != nil; r = c.backlog.next(true) {
		r.run()
	}
	done = true
}
