package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// Future is the result of a call, which may not have ended yet; see package future.
type Future[T any] = future.Future[T]

// None is the argument, or the result, of a function that has none.
type None struct{}

// Func is the name of a function with the types of its argument and its result. Callers call
// the function with it; a worker serves the function by listing the result of Serve. The two
// ends may use different types if these are encoded alike, see package codec.
type Func[A, R any] struct{ name string }

// NewFunc returns the Func of that name, on which both ends must agree. By convention a name
// has a dot or a slash after the name of a package.
func NewFunc[A, R any](name string) Func[A, R] { return Func[A, R]{name} }

// Name returns the name of the function.
func (f Func[A, R]) Name() string { return f.name }

// Call calls the function on the worker to and waits for the result. The call ends with ctx, and
// after the agent's default timeout or that of an option; then the context of the handler ends,
// too.
//
// When Call returns, the memory of args is free, even if the call failed while the request was
// being sent. The error is an *Error. It wraps a *RemoteError for an error that the handler
// returned, and otherwise matches ErrTimeout, ErrUnreachable, ErrNoWorker, ErrArguments,
// ErrResult, ErrClosed or the error of ctx.
func (f Func[A, R]) Call(ctx context.Context, a *Agent, to To, args A, opts ...CallOption) (R, error) {
	var result R
	err := a.roundTrip(ctx, target{to: to, name: f.name, opts: opts}, &result, &args)
	return result, err
}

// Go is Call without waiting for the result. It does wait while it opens a pipe to the worker, and
// while the calls in progress to the worker use up Limits.CallBytes. The memory of args is in use
// until the future is done: if the call ends while the request is being sent, the future is done
// once the memory is free, which does not depend on the other end. Cancelling the future ends the
// call as the end of ctx does, and returns when the memory is free.
func (f Func[A, R]) Go(ctx context.Context, a *Agent, to To, args A, opts ...CallOption) *Future[R] {
	return callInScope[R](ctx, a, target{to: to, name: f.name, opts: opts}, &args)
}

// Served is a function that a worker serves, for Config.Funcs.
type Served struct {
	entry handlerEntry
	err   error
}

// Funcs are the functions that a worker serves. It serves no others.
type Funcs []Served

// ServeOption changes how a function is served.
type ServeOption func(*Served)

// WithShort declares that a function returns quickly and waits for nothing. It runs on the
// goroutine that reads the messages of the caller, which saves a switch to another one, and
// regardless of Config.MaxHandlers. That goroutine is one of the agent, or one of this process that
// waits for a reply of the same worker. Hence the function must not take a lock that some goroutine
// holds during a call, and runtime.Goexit, which FailNow of a test calls, would end the goroutine
// that waits.
//
// If the function waits with its context for a call, a barrier, a future or the store after
// all, another goroutine reads the messages of the caller; the goroutine on which it runs is
// held up. If it waits for anything else, all messages of this caller are held up, perhaps
// that for which it waits among them.
func WithShort() ServeOption { return func(s *Served) { s.entry.short = true } }

// WithBorrowedArgs declares that a function keeps no reference to its argument. The memory of the
// tensors in the argument is reused once the reply was sent. The result may contain these tensors
// or views of them, which must not be used after the reply was sent. This makes large calls
// faster, since new memory costs more than a copy.
func WithBorrowedArgs() ServeOption { return func(s *Served) { s.entry.borrows = true } }

// Serve returns the function as served by fn. The context of fn is cancelled when the caller
// cancels the call or dies; the result of fn is discarded then. fn owns its argument. The result
// must not change until it was sent, and nothing reports when that is: return values that are not
// changed later. If fn is nil, or the options exclude each other, Join fails with ErrConfig.
func (f Func[A, R]) Serve(fn func(ctx context.Context, args A) (R, error), opts ...ServeOption) Served {
	if fn == nil {
		return newServed(f.name, nil, opts)
	}
	return newServed(f.name, &plainHandler[A, R]{fn}, opts)
}

// ServeAsync returns the function as served by fn, whose future is the result of the call. fn must
// return at once, and counts for Config.MaxHandlers only until then. When the caller cancels the
// call, the future is cancelled. If fn returns nil, the call fails with ErrResult. If fn is nil,
// Join fails with ErrConfig.
func (f Func[A, R]) ServeAsync(fn func(ctx context.Context, args A) *Future[R], opts ...ServeOption) Served {
	if fn == nil {
		return newServed(f.name, nil, opts)
	}
	return newServed(f.name, &asyncHandler[A, R]{fn}, opts)
}

// newServed returns the function of that name as served by h, with opts applied. If h is nil, or
// the options exclude each other, the result holds an error, with which Join fails.
func newServed(name string, h invocable, opts []ServeOption) Served {
	s := Served{entry: handlerEntry{name: name}}
	if h == nil {
		s.err = fmt.Errorf("%w: %s: function is nil", ErrConfig, name)
	} else {
		s.entry.Handler, s.entry.invoked = h, invokedHandler{h}
	}
	for _, set := range opts {
		set(&s)
	}
	if s.entry.once && s.entry.borrows {
		s.err = fmt.Errorf("%w: %s: a result that is kept must not view memory that is reused: WithOnce or WithBorrowedArgs", ErrConfig, name)
	}
	return s
}

type plainHandler[A, R any] struct {
	fn func(context.Context, A) (R, error)
}

type plainTask[A, R any] struct {
	handler *plainHandler[A, R]
	args    A
	result  R
}

func (h *plainHandler[A, R]) Open(r *Request) (Task, error) {
	t := &plainTask[A, R]{handler: h}
	return t, decodeArgs(r, &t.args)
}

// decodeArgs decodes the argument of a function to the value to which ptr points. The error
// matches ErrArguments.
func decodeArgs(r *Request, ptr any) error {
	if err := r.Decode(ptr); err != nil {
		return fmt.Errorf("%w of %s: %w", ErrArguments, r.Name(), err)
	}
	return nil
}

func (t *plainTask[A, R]) Run(ctx context.Context, r *Request) {
	result, err := t.handler.fn(ctx, t.args)
	if err != nil {
		r.failLogged(err)
		return
	}
	t.result = result
	_ = r.replyResult(&t.result) // an error is the reply instead
}

type asyncHandler[A, R any] struct {
	fn func(context.Context, A) *Future[R]
}

type asyncTask[A, R any] struct {
	handler *asyncHandler[A, R]
	args    A
}

func (h *asyncHandler[A, R]) Open(r *Request) (Task, error) {
	t := &asyncTask[A, R]{handler: h}
	return t, decodeArgs(r, &t.args)
}

func (t *asyncTask[A, R]) Run(ctx context.Context, r *Request) {
	r.replyFuture(ctx, t.handler.fn(ctx, t.args))
}

// failLogged replies with the error of a function, and logs it unless it is context.Canceled.
func (r *Request) failLogged(err error) {
	if !errors.Is(err, context.Canceled) {
		r.conn.agent.log.Warn("handler failed", "function", r.Name(), "caller", r.conn.peer.Name, "error", err)
	}
	_ = r.Fail(err)
}

// MessageType is one type of messages. A worker serves it by a handler in Config.Handlers. Its
// requests are calls as those of a Func, but the handler decodes the arguments and replies
// itself, and each request has a name whose meaning the type defines.
type MessageType[A, R any] struct{ typ string }

// NewMessageType returns the type of messages of that name. By convention the name begins with a
// package; "agent." is reserved for this one.
func NewMessageType[A, R any](typ string) MessageType[A, R] { return MessageType[A, R]{typ} }

// Type returns the name of the type.
func (m MessageType[A, R]) Type() string { return m.typ }

// Call sends a request and waits for the reply, as Func.Call does. The handler at the worker must
// decode an A and reply with a pointer to an R.
func (m MessageType[A, R]) Call(ctx context.Context, a *Agent, to To, name string, args A, opts ...CallOption) (R, error) {
	var result R
	err := a.roundTrip(ctx, target{to: to, typ: m.typ, name: name, opts: opts}, &result, &args)
	return result, err
}

// Go is Call without waiting for the reply, see Func.Go.
func (m MessageType[A, R]) Go(ctx context.Context, a *Agent, to To, name string, args A, opts ...CallOption) *Future[R] {
	return callInScope[R](ctx, a, target{to: to, typ: m.typ, name: name, opts: opts}, &args)
}
