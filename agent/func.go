package agent

import (
	"context"
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

// NewFunc returns the Func with the given name. Callers and the worker that serves the function
// must use the same name. By convention a name has a dot or a slash after the name of a package.
func NewFunc[A, R any](name string) Func[A, R] { return Func[A, R]{name} }

// Name returns the name of the function.
func (f Func[A, R]) Name() string { return f.name }

// Call calls the function on the worker that to addresses, and waits for the result. The call ends
// when ctx ends, or after the timeout: that of WithTimeout in opts, or else the agent's default.
// The context of the handler then ends, too.
//
// When Call returns, the memory of args is free, even if the call failed while the request was
// being sent. The result belongs to the caller; its tensors are in memory of Config.Allocator, or
// of the caller's choice, see WithInto. The error is an *Error, and the result must then not be
// used. The error wraps a *RemoteError if the handler returned an error or the worker rejected the
// call, and otherwise the reason, such as ErrTimeout after the timeout or the deadline of ctx,
// ErrUnreachable, ErrNoWorker, ErrArguments, ErrResult, ErrClosed, ErrConfig for an invalid option,
// or the cause of ctx.
func (f Func[A, R]) Call(ctx context.Context, a *Agent, to To, args A, opts ...CallOption) (R, error) {
	var result R
	err := a.roundTrip(ctx, target{to: to, name: f.name, opts: opts}, &result, &args)
	return result, err
}

// Go calls the function as Call does, but returns a future of the result instead of waiting for it.
// It blocks only while it opens a pipe to the worker, and while the calls in progress to the worker
// use up Limits.CallBytes. Every error fails the future.
//
// The memory of args is in use until the future is done. If the call ends while the request is
// being sent, the future is done once that memory is free, which does not depend on the other end.
// Cancelling the future ends the call as the end of ctx does; the cancellation returns when the
// memory is free.
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

// WithShort declares that a function returns quickly and waits for nothing. The function then runs
// on the goroutine that reads the messages of the caller, which saves a switch to another
// goroutine, and regardless of Config.MaxHandlers. That goroutine is one of the agent, or one of
// this process that waits for a reply of the same worker, for the future of a call, or for a pass of
// package dist. Hence the function must not take a lock that some goroutine holds during such a wait,
// and must not call runtime.Goexit, as FailNow of a test does: that would end the goroutine that waits.
//
// If the function nevertheless waits with its context for a call, a barrier, a future or the store,
// another goroutine reads the messages of the caller, and only the goroutine on which the function
// runs is held up. If the function waits for anything else, all messages of this caller are held
// up, perhaps including the one for which the function waits.
func WithShort() ServeOption { return func(s *Served) { s.entry.short = true } }

// WithBorrowedArgs declares that a function keeps no reference to its argument. The memory of the
// tensors in the argument is reused once the reply was sent. The result may contain these tensors
// or views of them, which must not be used after the reply was sent. This makes large calls faster,
// since new memory costs more than a copy. It excludes WithOnce: Join fails for a function with
// both.
func WithBorrowedArgs() ServeOption { return func(s *Served) { s.entry.borrows = true } }

// Serve returns an entry for Config.Funcs: the worker serves the function by calling fn for each
// request, concurrently. The context of fn is cancelled when the caller cancels the call or dies;
// the result of fn is discarded then. fn owns its argument. The result of fn must not change until
// it was sent, which AfterReply reports. If fn is nil, or opts has WithOnce together with
// WithBorrowedArgs or WithArgsInto, Join fails with an error that matches ErrConfig.
func (f Func[A, R]) Serve(fn func(ctx context.Context, args A) (R, error), opts ...ServeOption) Served {
	if fn == nil {
		return newServed(f.name, nil, opts)
	}
	return newServed(f.name, &plainHandler[A, R]{fn}, opts)
}

// ServeAsync returns an entry for Config.Funcs: the worker serves the function by calling fn for
// each request, and replies with the result or the error of the future that fn returns. fn must
// return at once, and counts for Config.MaxHandlers only until then. When the caller cancels the
// call, the future is cancelled. If fn returns nil, the call fails with ErrResult. If fn is nil, or
// opts has WithOnce together with WithBorrowedArgs or WithArgsInto, Join fails with an error that
// matches ErrConfig.
func (f Func[A, R]) ServeAsync(fn func(ctx context.Context, args A) *Future[R], opts ...ServeOption) Served {
	if fn == nil {
		return newServed(f.name, nil, opts)
	}
	return newServed(f.name, &asyncHandler[A, R]{fn}, opts)
}

// newServed returns the entry for Config.Funcs by which h serves the function with this name, with
// opts applied. If h is nil, or opts has WithOnce together with WithBorrowedArgs or WithArgsInto,
// the entry holds an error that matches ErrConfig, with which Join fails.
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
	if s.entry.once && s.entry.place != nil {
		s.err = fmt.Errorf("%w: %s: a request that is repeated must not be received to its memory again: WithOnce or WithArgsInto", ErrConfig, name)
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

// decodeArgs decodes the argument of the request r to the value to which ptr points. The error
// matches ErrArguments.
func decodeArgs(r *Request, ptr any) error {
	if err := r.Decode(ptr); err != nil {
		return fmt.Errorf("%w: %w", ErrArguments, err)
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

// failLogged replies to the request with err, the error of the function, and logs err for
// debugging: the caller gets the error, and decides what it means. If the request has been replied
// to before, failLogged only logs.
func (r *Request) failLogged(err error) {
	r.conn.agent.log.Debug("handler failed", "function", r.Name(), "caller", r.conn.peer.Name, "error", err)
	_ = r.Fail(err)
}

// MessageType is one type of messages. A worker serves it by a handler in Config.Handlers. Its
// requests are calls as those of a Func, but the handler decodes the arguments and replies
// itself, and each request has a name whose meaning the type defines.
type MessageType[A, R any] struct{ typ string }

// NewMessageType returns the type of messages with the given name. By convention the name begins
// with the name of a package; names that begin with "agent." are reserved for package agent.
func NewMessageType[A, R any](typ string) MessageType[A, R] { return MessageType[A, R]{typ} }

// Type returns the name of the type.
func (m MessageType[A, R]) Type() string { return m.typ }

// Call sends a request of this type, with the given name and args, to the worker that to addresses,
// and waits for the reply. The worker's handler in Config.Handlers must decode an A with
// Request.Decode and call Request.Reply with a pointer to an R. The memory of args, the timeout and
// the error are as for Func.Call.
func (m MessageType[A, R]) Call(ctx context.Context, a *Agent, to To, name string, args A, opts ...CallOption) (R, error) {
	var result R
	err := a.roundTrip(ctx, target{to: to, typ: m.typ, name: name, opts: opts}, &result, &args)
	return result, err
}

// Go sends a request as Call does, but returns a future of the reply instead of waiting for it. It
// blocks only while it opens a pipe to the worker, and while the calls in progress to the worker
// use up Limits.CallBytes. The memory of args is in use until the future is done. Every error fails
// the future.
func (m MessageType[A, R]) Go(ctx context.Context, a *Agent, to To, name string, args A, opts ...CallOption) *Future[R] {
	return callInScope[R](ctx, a, target{to: to, typ: m.typ, name: name, opts: opts}, &args)
}

// WithReplyDevices sends the tensors of the request to the devices to which those of a reply would be
// sent: by the inverse of the called worker's device map. It is for extensions whose requests return
// something for tensors that have come in a request of that worker, such as their gradients.
func WithReplyDevices() CallOption { return func(o *callOptions) { o.replyDevices = true } }
