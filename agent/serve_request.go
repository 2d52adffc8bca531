package agent

import (
	"context"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/device"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Handler serves the requests of one type, or of one function.
type Handler interface {
	// Open decodes the values of a request and returns the task that replies to it. If it returns
	// an error, that is the reply. Open must not block: for small requests it runs on the
	// goroutine that reads the messages of the caller, see WithShort.
	Open(r *Request) (Task, error)
}

// Task is the work for one request.
type Task interface {
	// Run must reply to the request with Reply or Fail, before it returns or later from any
	// goroutine. ctx is cancelled when the caller does not wait for the reply any more. If Run
	// panics the reply is a *PanicError.
	Run(ctx context.Context, r *Request)
}

// Request is a call by another worker, or by this one. It is the context of its handler.
type Request struct {
	callContext
	conn         *conn
	id           uint64
	flags        byte
	charge       int        // part of conn.servingBytes
	largeCharge  int        // taken from conn.largeBudget
	nestedCharge int        // part of conn.nestedLargeBytes
	message      *inMessage // until its values are decoded
	handler      handlerEntry
	task         Task
	borrowed     []*tensor.Storage // released after the reply was sent
	streams      []device.Stream   // one for each device, returned then
	begun        time.Time
	ctx          context.Context             // of the handler: the request, with values that interceptors added
	hold         func(context.Context) error // set by an interceptor: the handler starts after it returns
	key          string                      // of a request whose handler runs once, see WithOnce
	number       uint64                      // of the key, 0 for a key of the application
	ended        uint64                      // all calls of the caller up to this number have ended
	once         *onceRun                    // the run that this request started, if it has a key
	stream       *stream                     // nil unless the request has opened a stream
	delegate     atomic.Pointer[delegation]  // nil unless a function runs on behalf of the handler, and after its reply

	requestEnds, replyEnds messageEnds // of the request and of its reply

	event    *ServeEndedInfo // nil without Events.ServeEnded
	answered atomic.Bool     // Reply or Fail was called
	replied  replyHooks
	stage    atomic.Uint32 // a ServedState, except those that state derives
	slot     slotState
}

// Value implements context.Context. For the key of requestOf it returns the request; for that of
// package future, the object that releases the request's slot during a wait; for that of leaderOf,
// nil, because r.slot has the leader. For other keys it returns the value of the parent context.
func (r *Request) Value(key any) any {
	switch key.(type) {
	case requestKey:
		return r
	case future.WaiterKey:
		return (*requestWaiter)(r)
	case leaderKey:
		return nil // its slotState has the leader
	}
	return r.callContext.Value(key)
}

// Agent returns the agent that serves the request.
func (r *Request) Agent() *Agent { return r.conn.agent }

// From returns the worker that made the call.
func (r *Request) From() WorkerInfo { return r.conn.peer }

// Incarnation returns the incarnation of the worker that made the call.
func (r *Request) Incarnation() Incarnation { return Incarnation(r.conn.owner.member.Incarnation) }

// Type returns the type of the message: empty for a call by a Func, "agent.invoke" for Invoke,
// "aten" for Op, and otherwise the name of the MessageType.
func (r *Request) Type() string { return r.handler.typ }

// Name returns the name of the function or operator, or the name in a message of another type.
func (r *Request) Name() string { return r.handler.name }

// Decode decodes the next value of the request to the value to which ptr points, and keeps no
// reference to it. The error is that of the codec. Only Handler.Open may call Decode; after Open
// has returned, the error matches ErrArguments.
func (r *Request) Decode(ptr any) error {
	if r.message == nil {
		return r.wrapError(fmt.Errorf("%w: values are decoded before Open returns", ErrArguments))
	}
	return r.conn.agent.values.Decode(r.message.decoder, ptr)
}

// Header returns the data of the header of that name and true, or nil and false if the request does
// not have it, see WithHeader. The data must not be changed, nor used after Open has returned. Only
// Handler.Open may call Header; later it returns false.
func (r *Request) Header(name string) (data []byte, ok bool) {
	if r.message == nil {
		return nil, false
	}
	return r.message.decoder.Header(name)
}

func (r *Request) callKey() CallKey { return CallKey{r.conn, r.id, true} }

func (r *Request) wrapError(err error) error {
	return &Error{Op: "serve", Func: r.Name(), Worker: r.conn.peer.Name, Err: err}
}

// claim makes the calling goroutine the only one that may reply to the request, and returns nil. If
// claim has succeeded before, the error matches ErrResult.
func (r *Request) claim() error {
	if r.answered.Swap(true) {
		return r.wrapError(fmt.Errorf("%w: the request has been answered", ErrResult))
	}
	return nil
}

// goexit is the value of a PanicError for runtime.Goexit.
const goexit = "runtime.Goexit"

var errGoexit error = &PanicError{Value: goexit}

// run runs the task of the request on this goroutine. The task of a function whose caller does not
// wait any more does not run: the reply is the cause. If the task panics or ends the goroutine, run
// logs that and, unless the task has replied, replies with a *PanicError. held reports whether the
// request still has the slot in which it was started: the caller must then pass the slot on. If the
// task ends the goroutine, run does that itself.
func (r *Request) run() (held bool) {
	returned := false
	defer func() {
		v := recover()
		if v == nil && !returned {
			v = goexit
		}
		if v != nil {
			err := &PanicError{Value: fmt.Sprint(v), Stack: string(debug.Stack())}
			r.conn.agent.log.Error("handler panicked", "function", r.Name(), "caller", r.conn.peer.Name, "panic", err.Value, "stack", err.Stack)
			_ = r.Fail(err) // fails if the task has replied; then only the log has the panic
		}
		r.stage.Store(uint32(ServedDeferred))
		if held = r.slot.finish(); held && !returned && v == goexit {
			r.conn.agent.slots.release() // this goroutine ends
		}
	}()
	r.stage.Store(uint32(ServedRunning))
	if !r.short() {
		defer r.conn.agent.paces.of(r).measure(time.Now())
	}
	if r.event != nil {
		r.event.Queued = time.Since(r.event.Start)
	}
	switch {
	case r.handler.invoked != nil && r.Err() != nil:
		// The caller does not wait any more. Handlers of types run nevertheless: they may have to
		// see all of their messages.
		_ = r.Fail(ctxerr.Cause(r)) // nothing else replies
	case r.conn.agent.labels && !r.short():
		labels := pprof.Labels("function", displayName(r.handler.typ, r.handler.name), "caller", r.conn.peer.Name)
		pprof.Do(r.ctx, labels, func(ctx context.Context) { r.task.Run(ctx, r) })
	default:
		r.task.Run(r.ctx, r)
	}
	returned = true
	return
}

// catchPanic runs f and returns its error, or a *PanicError if it panics. It does not catch
// runtime.Goexit.
func catchPanic(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: fmt.Sprint(v), Stack: string(debug.Stack())}
		}
	}()
	return f()
}

// close ends a request after its reply was sent, or was lost with the error err. It reports
// ServeEnded, removes the request from those that are served, returns its bytes to the budgets,
// releases borrowed arguments, ends its context and runs the functions of AfterReply, and those of
// OnEnd of the request and the reply.
func (r *Request) close(err error) {
	c := r.conn
	c.agent.reportServeEnded(r)
	c.mu.Lock()
	if c.serving[r.id] == r {
		delete(c.serving, r.id)
		c.servingBytes -= r.charge
		if r.stream != nil {
			c.servingStreams--
		}
	}
	c.mu.Unlock()
	if r.stream != nil {
		r.stream.discard()
	}
	r.freeMemory()
	c.agent.devices.pool.Put(r.streams...)
	r.streams = nil
	r.finish()
	r.requestEnds.run(MessageHandled, nil)
	if err == nil {
		r.replyEnds.run(MessageSent, nil)
	} else {
		r.replyEnds.run(MessageUncertain, err)
	}
	r.replied.run(err)
}

// freeMemory returns the bytes of a large request to the budgets of the connection, and releases
// the storages of the arguments if the handler only borrowed them. Further calls do nothing.
func (r *Request) freeMemory() {
	c := r.conn
	if r.largeCharge > 0 {
		c.largeBudget.Release(r.largeCharge)
	}
	if r.nestedCharge > 0 {
		c.mu.Lock()
		c.nestedLargeBytes -= r.nestedCharge
		c.mu.Unlock()
	}
	for _, s := range r.borrowed {
		if s != nil { // nil for memory that a PlaceFunc has chosen
			s.Release()
		}
	}
	r.largeCharge, r.nestedCharge, r.borrowed = 0, 0, nil
}

type requestKey struct{}

// requestOf returns the request whose handler's context is ctx or a parent of ctx. It returns nil
// if there is none.
func requestOf(ctx context.Context) *Request {
	r, _ := ctx.Value(requestKey{}).(*Request)
	return r
}

// Caller returns the worker that called the handler with context ctx, and true. It returns false if
// ctx is not derived from the context of a handler.
func Caller(ctx context.Context) (WorkerInfo, bool) {
	if r := requestOf(ctx); r != nil {
		return r.conn.peer, true
	}
	return WorkerInfo{}, false
}

// FromContext returns the agent that serves the call whose handler has ctx, for calls that the
// handler makes. It returns nil if ctx is not derived from the context of a handler.
func FromContext(ctx context.Context) *Agent {
	if r := requestOf(ctx); r != nil {
		return r.conn.agent
	}
	return nil
}

// AfterReply makes f run, on a goroutine of its own, once the agent does not use the memory of the
// reply to a request any more: after the reply was sent, or was lost. A handler that replies with
// parts of a pool calls it, and f returns these parts to the pool. ctx is the context of the
// handler, of a PlaceFunc of WithArgsInto, or one derived from it. The argument of f is nil if the
// reply was sent, which does not mean that the caller has received it; otherwise it is the reason
// for which the reply was lost, such as ErrUnreachable or ErrClosed. A request that fails has a
// reply too.
//
// Several functions run concurrently. If the reply has left before, f runs at once. After an error
// f does not run: the error matches ErrConfig if f is nil, if ctx is not that of a handler, or if
// the function is served WithOnce, which keeps its replies.
func AfterReply(ctx context.Context, f func(err error)) error {
	r := requestOf(ctx)
	switch {
	case f == nil:
		return fmt.Errorf("%w: AfterReply: the function is nil", ErrConfig)
	case r == nil:
		return fmt.Errorf("%w: AfterReply: not the context of a handler", ErrConfig)
	case r.handler.once:
		return r.wrapError(fmt.Errorf("%w: AfterReply: a function that is served WithOnce keeps its replies", ErrConfig))
	}
	r.replied.add(f)
	return nil
}

// replyHooks is the functions that run after the reply to a request has left.
type replyHooks struct{ last atomic.Pointer[replyHook] }

// replyHook is one of the functions, or, with a function that is nil, the mark that the reply has
// left.
type replyHook struct {
	f    func(error)
	next *replyHook
	err  error // of the mark: with which the reply was lost
}

// replySentMark is the mark of all replies that were sent.
var replySentMark = &replyHook{}

// add makes f run after the reply has left, or at once if it has left before.
func (h *replyHooks) add(f func(error)) {
	hook := &replyHook{f: f}
	for {
		last := h.last.Load()
		if last != nil && last.f == nil {
			go f(last.err)
			return
		}
		hook.next = last
		if h.last.CompareAndSwap(last, hook) {
			return
		}
	}
}

// run records that the reply has left, with the error err, and runs the functions. It is called
// once.
func (h *replyHooks) run(err error) {
	mark := replySentMark
	if err != nil {
		mark = &replyHook{err: err}
	}
	for hook := h.last.Swap(mark); hook != nil; hook = hook.next {
		go hook.f(err)
	}
}
