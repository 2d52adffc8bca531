package agent

import (
	"context"
	"fmt"
	"reflect"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// Function serves any function by name, for Invoke:
//
//	agent.Function("math.max", func(first int, others ...int) int { ... })
//
// It may have a context.Context as its first parameter, which is the handler's, and an
// error as its last result. A method of a type is served as a function of the
// receiver by its method expression, and as one of a certain value by its method
// value; see Methods for all of them.
//
// A Func calls it too if it has one parameter, or none for a None, and one result, or
// none for a None.
func Function(name string, fn any, opts ...ServeOption) Served {
	return reflected(name, fn, false, opts)
}

// AsyncFunction is Function for functions whose only result is a *Future, which
// is what the call is answered with; see Func.ServeAsync.
func AsyncFunction(name string, fn any, opts ...ServeOption) Served {
	return reflected(name, fn, true, opts)
}

func reflected(name string, fn any, async bool, opts []ServeOption) Served {
	h, err := newFuncHandler(reflect.ValueOf(fn), async)
	if err != nil {
		return Served{entry: entry{name: name}, err: fmt.Errorf("%w: %s: %w", ErrConfig, name, err)}
	}
	return served(name, h, opts)
}

// funcHandler calls a function of any type.
type funcHandler struct {
	fn       reflect.Value
	context  bool           // it is the first parameter
	in       []reflect.Type // the other parameters
	variadic bool
	out      []reflect.Type // the results without the error
	fails    bool           // the last result is an error
	async    bool           // the only result is a future
}

var (
	contextType = reflect.TypeFor[context.Context]()
	errorType   = reflect.TypeFor[error]()
	futureType  = reflect.TypeFor[future.Any]()
)

func newFuncHandler(fn reflect.Value, async bool) (*funcHandler, error) {
	if fn.Kind() != reflect.Func || fn.IsNil() {
		return nil, fmt.Errorf("function should be callable, got %v", describeValue(fn))
	}
	t := fn.Type()
	h := &funcHandler{fn: fn, variadic: t.IsVariadic(), async: async}
	for i := range t.NumIn() {
		if i == 0 && t.In(0) == contextType {
			h.context = true
			continue
		}
		h.in = append(h.in, t.In(i))
	}
	for i := range t.NumOut() {
		if i == t.NumOut()-1 && t.Out(i) == errorType {
			h.fails = true
			continue
		}
		h.out = append(h.out, t.Out(i))
	}
	return h, h.checkFuture()
}

func describeValue(v reflect.Value) string {
	if !v.IsValid() {
		return "nil"
	}
	return v.Type().String()
}

// checkFuture refuses an asynchronous function without a future, and futures that
// nobody would wait for.
func (h *funcHandler) checkFuture() error {
	if h.async && (len(h.out) != 1 || h.fails || !h.out[0].Implements(futureType)) {
		return fmt.Errorf("an asynchronous function must return a *Future, and that alone, but this is a %v", h.fn.Type())
	}
	for _, t := range h.out {
		if !h.async && t.Implements(futureType) {
			return fmt.Errorf("%w, AsyncFunction or Methods", ErrFuture)
		}
	}
	return nil
}

// returnsFuture reports whether a function is an asynchronous one by its type.
func returnsFuture(t reflect.Type) bool { return t.NumOut() == 1 && t.Out(0).Implements(futureType) }

// Open takes the call of a Func.
func (h *funcHandler) Open(r *Request) (Task, error) {
	args := h.newArgs()
	switch {
	case len(args) > 1 || h.variadic || len(h.out) > 1:
		return nil, fmt.Errorf("%w: %s takes %s and has %d results: call it by Invoke", ErrArguments, r.Name(), signatureOf(args, h.variadic), len(h.out))
	case len(args) == 0:
		return h.task(args), decodeArgs(r, new(None))
	default:
		return h.task(args), decodeArgs(r, args[0].Addr().Interface())
	}
}

func (h *funcHandler) openInvoked(r *Request, v *invocation) (Task, error) {
	args := h.newArgs()
	if v.Named != nil && len(args) == 1 && !h.variadic {
		return h.task(args), v.toOne(r.Name(), args[0])
	}
	return h.task(args), v.toEach(r.Name(), args, h.variadic)
}

func (h *funcHandler) newArgs() []reflect.Value {
	args := make([]reflect.Value, len(h.in))
	for i, t := range h.in {
		args[i] = reflect.New(t).Elem()
	}
	return args
}

func (h *funcHandler) task(args []reflect.Value) Task { return &funcTask{h, args} }

type funcTask struct {
	*funcHandler
	args []reflect.Value
}

// Run calls the function and answers with what it returns.
func (t *funcTask) Run(ctx context.Context, r *Request) {
	args := t.args
	if t.context {
		args = append([]reflect.Value{reflect.ValueOf(&ctx).Elem()}, args...)
	}
	call := t.fn.Call
	if t.variadic {
		call = t.fn.CallSlice
	}
	results := call(args)
	if t.fails {
		last := len(results) - 1
		if err, _ := results[last].Interface().(error); err != nil {
			r.failed(err)
			return
		}
		results = results[:last]
	}
	if t.async {
		f, _ := results[0].Interface().(future.Any)
		r.answerLater(ctx, f)
		return
	}
	// An error is the answer then.
	_ = r.answerAll(results)
}

// answerAll replies with the results of a function.
func (r *Request) answerAll(results []reflect.Value) error {
	if r.handler.typ == invokeType {
		values := make([]any, len(results))
		for i, v := range results {
			values[i] = v.Interface()
		}
		return r.Reply(&values)
	}
	if len(results) == 0 {
		return r.Reply(&None{})
	}
	ptr := reflect.New(results[0].Type()) // Open sees to it that there is but one
	ptr.Elem().Set(results[0])
	return r.Reply(ptr.Interface())
}

// answerLater answers with the outcome of a future, which is cancelled when nobody
// waits for it any more.
func (r *Request) answerLater(ctx context.Context, f future.Any) {
	if f == nil || reflect.ValueOf(f).IsNil() {
		r.failed(fmt.Errorf("%w: asynchronous function %s returned no future", ErrResult, r.Name()))
		return
	}
	stop := context.AfterFunc(ctx, func() { f.Cancel(context.Cause(ctx)) })
	answer := func(ptr any, err error) {
		stop()
		if err != nil {
			r.failed(err)
			return
		}
		_ = r.answer(ptr)
	}
	if err := future.OnValue(f, answer); err != nil {
		r.failed(err)
	}
}
