package agent

import (
	"context"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Handler serves the requests of one type, or of one function.
type Handler interface {
	// Open decodes the values of a request and returns what is to be done. An error
	// is the answer. It does not block: for small requests it runs where what this caller
	// sends is taken in, see Short.
	Open(r *Request) (Task, error)
}

// Task does what a request asks for.
type Task interface {
	// Run does it, and has the request answered by Reply or Fail: before it returns,
	// or later from any goroutine. The context ends when nobody waits for the answer
	// any more. A panic is answered with an error.
	Run(ctx context.Context, r *Request)
}

// Request is a call of another worker, or of this one.
type Request struct {
	callContext
	conn        *conn
	id          uint64
	flags       byte
	weight      int      // of conn.taken
	large       int      // of conn.large
	nestedLarge int      // of conn.nestedLarge
	arrival     *arrival // until its values are decoded
	handler     entry
	task        Task
	borrowed    []*tensor.Storage // to be released when the answer has left
	begun       time.Time
	ctx         context.Context             // of the handler: this request, and what interceptors added
	held        func(context.Context) error // by interceptors, before it may start
	key         string                      // of one whose handler runs once, see Once
	number      uint64                      // of the key, 0 for one of the application
	ended       uint64                      // all calls of the caller up to this number have ended
	once        *run                        // that this request leads

	answered atomic.Bool
	stage    atomic.Uint32 // a ServedState, as far as the others do not tell
	slot     slotState
}

// Value implements context.Context.
func (r *Request) Value(key any) any {
	switch key.(type) {
	case requestKey:
		return r
	case future.WaiterKey:
		return (*slotWaiter)(r)
	case shiftKey:
		return nil // its slot knows of that
	}
	// What the package context asks for to find the cause is here, not at the base.
	v := r.base.Value(key)
	if _, inner := v.(context.Context); v != nil && !inner {
		return v
	}
	return r.callContext.value(key)
}

// Agent is the agent that serves the request.
func (r *Request) Agent() *Agent { return r.conn.agent }

// From is who calls.
func (r *Request) From() WorkerInfo { return r.conn.peer }

// Type is the type of the message, empty for the call of a function.
func (r *Request) Type() string { return r.handler.typ }

// Name is the name of the function, or whatever the type takes it for.
func (r *Request) Name() string { return r.handler.name }

// Decode reads the next value that the caller encoded into what ptr points to. It is
// for Handler.Open.
func (r *Request) Decode(ptr any) error {
	if r.arrival == nil {
		return r.fault(fmt.Errorf("%w: values are decoded before Open returns", ErrArguments))
	}
	return r.conn.agent.values.Decode(r.arrival.decoder, ptr)
}

func (r *Request) fault(err error) error {
	return &Error{Op: "serve", Func: r.Name(), Worker: r.conn.peer.Name, Err: err}
}

// claim makes the caller the one who answers.
func (r *Request) claim() error {
	if r.answered.Swap(true) {
		return r.fault(fmt.Errorf("%w: the request has been answered", ErrResult))
	}
	return nil
}

// goexit stands for the panic of what ended its goroutine in place of returning.
const goexit = "runtime.Goexit"

var errGoexit error = &PanicError{Value: goexit}

// run does the task of the request, and reports whether the slot it ran in is still
// its own.
func (r *Request) run() (held bool) {
	returned := false
	defer func() {
		v := recover()
		if v == nil && !returned {
			v = goexit
		}
		if v != nil {
			r.panicked(v)
		}
		r.stage.Store(uint32(ServedLater))
		if held = r.slot.end(); held && !returned && v == goexit {
			r.conn.agent.slots.leave() // this goroutine ends
		}
	}()
	r.stage.Store(uint32(ServedRunning))
	r.work()
	returned = true
	return
}

// work does the task, unless that is a function for which nobody waits any more. What
// handles messages of other types may have to know of each.
func (r *Request) work() {
	if r.handler.invoked != nil && r.Err() != nil {
		_ = r.Fail(context.Cause(r)) // nobody else has the request
		return
	}
	if r.conn.agent.labels && !r.short() {
		pprof.Do(r.ctx, pprof.Labels("function", calledName(r.handler.typ, r.handler.name), "caller", r.conn.peer.Name), func(ctx context.Context) {
			r.task.Run(ctx, r)
		})
		return
	}
	r.task.Run(r.ctx, r)
}

// guarded is f, whose panic is an error.
func guarded(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: fmt.Sprint(v), Stack: string(debug.Stack())}
		}
	}()
	return f()
}

func (r *Request) panicked(v any) {
	err := &PanicError{Value: fmt.Sprint(v), Stack: string(debug.Stack())}
	r.conn.agent.log.Error("handler panicked", "function", r.Name(), "caller", r.conn.peer.Name, "panic", err.Value, "stack", err.Stack)
	// A task that has answered already cannot do so again: the log has to do.
	_ = r.Fail(err)
}

// close forgets a request that has been answered.
func (r *Request) close() {
	c := r.conn
	c.mu.Lock()
	if c.serving[r.id] == r {
		delete(c.serving, r.id)
		c.taken -= r.weight
	}
	c.mu.Unlock()
	r.freeMemory()
	r.finish()
}

// freeMemory gives back what the request has of the memory for large ones, and what it
// borrowed.
func (r *Request) freeMemory() {
	c := r.conn
	if r.large > 0 {
		c.large.Release(r.large)
	}
	if r.nestedLarge > 0 {
		c.mu.Lock()
		c.nestedLarge -= r.nestedLarge
		c.mu.Unlock()
	}
	for _, s := range r.borrowed {
		s.Release()
	}
	r.large, r.nestedLarge, r.borrowed = 0, 0, nil
}
