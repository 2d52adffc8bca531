package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// Future is the result of a call that comes later; see package future.
type Future[T any] = future.Future[T]

// None is the result of a function that has none, and the argument of one that takes
// none.
type None struct{}

// Func is the name of a function together with the types of its argument and its
// result. It does nothing by itself: callers call by it, and a worker that lists
// what Serve returns is called. Both ends may use types of their own as long as they
// are of the same make, see package codec.
type Func[A, R any] struct{ name string }

// NewFunc names a function. The name is what both ends must agree on; it has a dot or
// a slash to keep those of different packages apart, by custom.
func NewFunc[A, R any](name string) Func[A, R] { return Func[A, R]{name} }

// Name is the name of the function.
func (f Func[A, R]) Name() string { return f.name }

// Call calls the function on the worker to and waits for the result. The call ends
// when ctx does, and after the agent's default timeout or that of an option; the
// handler's context then ends too.
//
// The memory of args belongs to the call until it returns, and no longer where it fails
// while the request is still being sent. The error is an *Error. It
// wraps a *RemoteError for what the handler returned, and otherwise matches
// ErrTimeout, ErrUnreachable, ErrNoWorker, ErrArguments, ErrResult, ErrClosed or the
// error of ctx.
func (f Func[A, R]) Call(ctx context.Context, a *Agent, to To, args A, opts ...CallOption) (R, error) {
	var result R
	err := a.roundTrip(ctx, target{to: to, name: f.name, opts: opts}, &result, &args)
	return result, err
}

// Go is Call that does not wait for the result. It does wait while too much is in
// flight to the worker. The memory of args belongs to the call until the future is
// done, whatever its outcome: where that comes while the request is still being sent the
// memory is taken back first, which does not wait for the other end. Canceling the future
// ends the call as the end of ctx does, and returns when the memory is free.
func (f Func[A, R]) Go(ctx context.Context, a *Agent, to To, args A, opts ...CallOption) *Future[R] {
	return goCall[R](ctx, a, target{to: to, name: f.name, opts: opts}, &args)
}

// Served is a function that a worker serves, for Config.Funcs.
type Served struct {
	entry entry
	err   error
}

// Funcs are the functions that a worker serves. It serves no other.
type Funcs []Served

// ServeOption changes how a function is served.
type ServeOption func(*Served)

// Short says that a function returns at once and waits for nothing. It runs where what the
// caller sends is taken in, which saves a change of goroutines, and without regard to
// Config.MaxHandlers. That is on a goroutine of the agent, or on that of anyone in this
// process who waits for an answer of the same worker: it takes no lock that somebody
// holds while he makes a call, and runtime.Goexit, which FailNow of a test calls too,
// would end the goroutine of that one. While a call, a barrier, a future or a look at the
// store for which it waits after all, with its context, is not over, somebody else takes in
// what comes; but whoever lent it his goroutine waits too. If it waits for anything else it
// holds up everything that comes from this caller, which may be what it waits for.
func Short() ServeOption { return func(s *Served) { s.entry.short = true } }

// Borrows says that a function keeps nothing of its argument: the memory of the tensors
// in it, or viewed by its result, is used for others once the answer has left. Large
// calls are faster so, since fresh memory costs more than a copy.
func Borrows() ServeOption { return func(s *Served) { s.entry.borrows = true } }

// Serve has fn serve the function. The context is cancelled when the caller gives up
// or dies; what it returned is thrown away then. fn owns its argument. Its result must
// not change before it has left, which nobody tells: return what nobody changes.
func (f Func[A, R]) Serve(fn func(ctx context.Context, args A) (R, error), opts ...ServeOption) Served {
	if fn == nil {
		return f.served(nil, opts)
	}
	return f.served(&plainHandler[A, R]{fn}, opts)
}

// ServeAsync has fn serve the function: the answer is the future's outcome. fn returns
// at once, and takes no place of those of Config.Handlers once it has. When the
// caller gives up, the future is cancelled.
func (f Func[A, R]) ServeAsync(fn func(ctx context.Context, args A) *Future[R], opts ...ServeOption) Served {
	if fn == nil {
		return f.served(nil, opts)
	}
	return f.served(&asyncHandler[A, R]{fn}, opts)
}

func (f Func[A, R]) served(h invocable, opts []ServeOption) Served { return served(f.name, h, opts) }

// served is a function that is served by h, if it is not nil.
func served(name string, h invocable, opts []ServeOption) Served {
	s := Served{entry: entry{name: name}}
	if h == nil {
		s.err = fmt.Errorf("%w: %s: function is nil", ErrConfig, name)
	} else {
		s.entry.Handler, s.entry.invoked = h, invokedHandler{h}
	}
	for _, set := range opts {
		set(&s)
	}
	if s.entry.once && s.entry.borrows {
		s.err = fmt.Errorf("%w: %s: a result that is remembered must not view memory that is given back: Once or Borrows", ErrConfig, name)
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

// decodeArgs decodes the argument of a function.
func decodeArgs(r *Request, ptr any) error {
	if err := r.Decode(ptr); err != nil {
		return fmt.Errorf("%w of %s: %w", ErrArguments, r.Name(), err)
	}
	return nil
}

func (t *plainTask[A, R]) Run(ctx context.Context, r *Request) {
	result, err := t.handler.fn(ctx, t.args)
	if err != nil {
		r.failed(err)
		return
	}
	t.result = result
	// An error is the answer then.
	_ = r.answer(&t.result)
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
	r.answerLater(ctx, t.handler.fn(ctx, t.args))
}

// failed answers with the error of a function.
func (r *Request) failed(err error) {
	if !errors.Is(err, context.Canceled) {
		r.conn.agent.log.Warn("handler failed", "function", r.Name(), "caller", r.conn.peer.Name, "error", err)
	}
	_ = r.Fail(err)
}
