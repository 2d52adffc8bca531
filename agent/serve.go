package agent

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// entry is a handler under its name.
type entry struct {
	typ, name string
	short     bool
	once      bool // for each key
	borrows   bool // the memory of the tensors of its arguments
	Handler
	invoked Handler // of calls of a function by name
}

// serve sees to a request: at once, in the shift of the caller, if all of it is here and
// its handler is short, otherwise apart from that.
func (c *conn) serve(a *arrival, s *shift) {
	r := c.request(a)
	err := c.enlist(r)
	switch {
	case err == errTwice: // what came first is what gets the answer
		c.agent.stats.repeated.Add(1)
		r.drop()
	case err != nil:
		r.drop()
		c.reject(r, err)
	case r.handler.Handler == nil:
		r.drop()
		c.refuse(r, c.agent.notServed(r), s)
	case !a.immediate():
		a.readElsewhere(&c.reading)
		s.apart(r)
	default:
		c.open(r, s)
	}
}

// drop lets the message of a request go by.
func (r *Request) drop() {
	r.conn.agent.arrivals.drop(r.arrival)
	r.arrival = nil
}

// request makes the request that has come. One that nobody serves has no Handler.
func (c *conn) request(a *arrival) *Request {
	h := &a.head
	r := &Request{conn: c, id: h.id, flags: h.flags, arrival: a, begun: time.Now()}
	r.base = c.agent.base
	r.ctx = r
	if h.left > 0 {
		r.deadline, r.limit = r.begun.Add(h.left), h.left
	}
	e, ok := c.agent.handlers.find(h.typ, h.name)
	if !ok {
		e = entry{typ: string(h.typ), name: string(h.name)}
	}
	r.handler, r.weight = e, callOverhead+len(a.incoming.Descriptor().Metadata)
	if a.immediate() {
		r.weight += a.incoming.Descriptor().Bytes()
	}
	return r
}

// errTwice says that a request is being served already.
var errTwice = errors.New("request came twice")

// enlist lets a request be cancelled by the other end.
func (c *conn) enlist(r *Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.serving == nil {
		return ErrClosed
	}
	if _, twice := c.serving[r.id]; twice {
		return errTwice
	}
	if !c.fits(r) {
		return fmt.Errorf("%w: %d bytes in %d calls at once", ErrOverloaded, c.taken, len(c.serving))
	}
	c.taken += r.weight
	c.serving[r.id] = r
	if cause := c.early.take(r.id); cause != nil {
		r.callContext.cancel(cause)
	}
	return nil
}

// notServed is the error for a function or a type that nobody registered here.
func (a *Agent) notServed(r *Request) error {
	what := "function " + r.handler.name
	if t := r.handler.typ; t != "" && t != invokeType {
		what = "message type " + r.handler.typ
	}
	return fmt.Errorf("%w: %s is not registered on %s", ErrNoFunction, what, a.self)
}

// open reads the request, decodes it, and starts what it asks for.
func (c *conn) open(r *Request, s *shift) {
	if err := c.decodeIn(r, s); err != nil {
		c.refuse(r, err, s)
		return
	}
	if r.held != nil {
		r.stage.Store(uint32(ServedHeld))
		go c.startLater(r)
		return
	}
	c.start(r, s)
}

// decodeIn is decode in a shift. Where what the application does there ends the goroutine,
// that is answered.
func (c *conn) decodeIn(r *Request, s *shift) error {
	returned := false
	defer func() {
		r.slot.inShift(nil)
		if !returned {
			c.refuse(r, errGoexit, nil)
		}
	}()
	r.slot.inShift(s)
	err := c.decode(r)
	returned = true
	return err
}

// decode reads the request and has its values decoded.
func (c *conn) decode(r *Request) (err error) {
	a := r.arrival
	defer func() {
		r.arrival = nil
		c.agent.arrivals.put(a)
		if v := recover(); v != nil {
			err = &PanicError{Value: fmt.Sprint(v)}
		}
	}()
	if err := c.agent.arrivals.receive(r, a); err != nil {
		return marked(ErrArguments, err)
	}
	if r.handler.borrows {
		r.borrowed = slices.Clone(a.storages)
	}
	a.about = Message{Kind: KindRequest, Type: r.handler.typ, Name: r.handler.name, Peer: c.peer, decoder: a.decoder}
	if r.ctx, err = c.agent.received(r, &a.about); err != nil {
		return err
	}
	if err := r.takeKey(); err != nil {
		return err
	}
	if r.task, err = r.handler.Open(r); err != nil {
		return err
	}
	err = c.agent.decoded(r.ctx, &a.about)
	r.held = a.about.held
	return err
}

// startLater starts a request that an interceptor holds back. It takes no slot yet.
func (c *conn) startLater(r *Request) {
	if err := guarded(func() error { return r.held(r.ctx) }); err != nil {
		c.refuse(r, err, nil)
		return
	}
	c.start(r, nil)
}

func (c *conn) start(r *Request, s *shift) {
	if r.key != "" {
		first, err := c.owner.memory.enter(r)
		if err != nil {
			c.refuse(r, err, s)
			return
		}
		if !first {
			return
		}
	}
	c.launch(r, s)
}

// launch runs the handler of a request, when there is a slot and the answers before it
// have found room. s is nil on a goroutine for which nobody waits.
func (c *conn) launch(r *Request, s *shift) {
	if c.backlog.hold(r) {
		return
	}
	if r.short() {
		r.slot.inShift(s)
		r.run()
		return
	}
	r.stage.Store(uint32(ServedQueued))
	c.agent.slots.start(r, s)
}

// short reports whether the request is served on the goroutine that reads.
func (r *Request) short() bool {
	t, ok := r.task.(shortTask)
	return r.handler.short || ok && t.short()
}

// cancel ends the context of a request that the other end has given up.
func (c *conn) cancel(a *arrival) {
	cause := fmt.Errorf("%w: %s", ErrCallerGone, a.head.text)
	c.mu.Lock()
	r := c.serving[a.head.id]
	if r == nil {
		c.early.add(a.head.id, cause)
	}
	c.mu.Unlock()
	c.agent.arrivals.drop(a)
	if r != nil {
		r.callContext.cancel(cause)
	}
}
