package agent

import (
	"context"
	"fmt"
	"runtime/debug"
)

// Reply answers the request with what the pointers point to, which the caller
// decodes in the same order. Nothing of the values may change before it has left:
// tensors of up to 64 KiB have when Reply returns. A value that cannot travel becomes
// an error at the caller, and is returned. The error is ErrResult too where the
// request has been answered before.
func (r *Request) Reply(ptrs ...any) error {
	if err := r.claim(); err != nil {
		return err
	}
	e, err := r.encode(reply, ptrs...)
	if err != nil {
		err = marked(ErrResult, err)
		r.answerFailure(err)
		return err
	}
	r.sendOnce(reply, e)
	return nil
}

// Fail answers the request with an error. It keeps its identity where the caller
// has registered it, and otherwise its type and text.
func (r *Request) Fail(err error) error {
	if claimed := r.claim(); claimed != nil {
		return claimed
	}
	if r.once != nil && r.Err() != nil {
		r.abandon()
	}
	r.answerFailure(err)
	return nil
}

// answerFailure sends err, or what can be said of it.
func (r *Request) answerFailure(err error) {
	err, stack := travelling(err), ""
	if p, ok := err.(*PanicError); ok && r.flags&wantStack != 0 {
		stack = p.Stack
	}
	e, failed := r.encode(failure, &err, &stack)
	if failed != nil {
		text := fmt.Errorf("%v (which cannot travel as it is: %v)", err, failed)
		e, failed = r.encode(failure, &text, &stack)
	}
	if failed != nil {
		r.conn.agent.log.Error("no answer", "function", r.Name(), "caller", r.conn.peer.Name, "error", failed)
		r.sendOnce(failure, nil)
		r.conn.pipe.Abort(failed)
		r.close()
		return
	}
	r.sendOnce(failure, e)
}

// encode makes an answer. A panic in methods of a value, as in that of an error that is
// a nil pointer, is an error: somebody waits for an answer.
func (r *Request) encode(k kind, ptrs ...any) (e *envelope, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: fmt.Sprint(v), Stack: string(debug.Stack())}
		}
	}()
	a := r.conn.agent
	e = a.envelopes.get()
	e.begin(appendHead(e.buf[:0], k, 0, r.id))
	e.back = r.conn.back
	e.about = Message{Kind: k.public(), Type: r.handler.typ, Name: r.handler.name, Peer: r.conn.peer, encoder: e.encoder}
	if err := a.encode(r.ctx, e, ptrs...); err != nil {
		a.envelopes.put(e)
		return nil, err
	}
	return e, nil
}

// send sends an answer. Who calls it may be the goroutine that reads, of this pipe or
// another one, which must not wait for room: the other end may free that only when it
// has been read from.
func (r *Request) send(e *envelope) {
	done, err := r.conn.writeNow(e)
	switch {
	case done:
		r.departed(err)
	case e.small():
		r.sendLate(e)
	default:
		r.await(e.bytes(), false, func() error { return r.conn.write(context.Background(), e) })
	}
}

// sendLate sends a small answer for which there is no room, as a copy. What the request
// took of the memory for large ones is free meanwhile: the room may be that of calls that
// wait for the same at the other end, and so on.
func (r *Request) sendLate(e *envelope) {
	c, m, n := r.conn, &e.message, e.bytes()
	if kept, err := keep(m); err == nil {
		c.agent.envelopes.put(e)
		m = kept
		r.freeMemory()
	}
	r.await(n, true, func() error { return c.pipe.Write(context.Background(), m) })
}

// await has an answer of n bytes written, which takes a while. Too many of them keep
// other requests of this caller from beginning.
func (r *Request) await(n int, small bool, write func() error) {
	c := r.conn
	c.backlog.add(n, small)
	go func() {
		r.departed(write())
		c.backlog.remove(n, small)
		c.goOn()
	}()
}

// departed ends a request whose answer has left, or was lost.
func (r *Request) departed(err error) {
	if err != nil {
		r.conn.agent.log.Debug("answer lost", "function", r.Name(), "caller", r.conn.peer.Name, "error", err)
	}
	r.close()
}
