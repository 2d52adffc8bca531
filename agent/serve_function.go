package agent

import (
	"context"
	"fmt"
	"reflect"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
)

// ReflectFunc returns an entry for Config.Funcs by which the worker serves the function fn, of any
// type, under the given name. Callers use it with Invoke:
//
//	agent.ReflectFunc("math.max", func(first int, others ...int) int { ... })
//
// fn may have a context.Context, which is that of the handler, as its first parameter, and an error
// as its last result. Use a method expression to serve a method with the receiver as an argument, a
// method value to serve it for one receiver, and Methods to serve all methods of a value. If fn
// cannot be served, Join fails with an error that matches ErrConfig.
//
// A Func can call fn too if, not counting the context and the error, fn has at most one parameter
// and one result and is not variadic. A missing parameter or result is a None in the Func.
func ReflectFunc(name string, fn any, opts ...ServeOption) Served {
	return reflected(name, fn, false, opts)
}

// ReflectAsyncFunc returns an entry for Config.Funcs by which the worker serves fn, a function
// whose only result is a *Future, under the given name. The value or error of that future is the
// reply; see Func.ServeAsync. The parameters of fn are as for ReflectFunc. If fn is not such a
// function, Join fails with an error that matches ErrConfig.
func ReflectAsyncFunc(name string, fn any, opts ...ServeOption) Served {
	return reflected(name, fn, true, opts)
}

func reflected(name string, fn any, async bool, opts []ServeOption) Served {
	h, err := newFuncHandler(reflect.ValueOf(fn), async)
	if err != nil {
		return Served{entry: handlerEntry{name: name}, err: fmt.Errorf("%w: %s: %w", ErrConfig, name, err)}
	}
	return newServed(name, h, opts)
}

// funcHandler serves a function of any type by reflection.
type funcHandler struct {
	fn           reflect.Value
	context      bool           // the first parameter is a context
	in           []reflect.Type // the other parameters
	variadic     bool
	out          []reflect.Type // the results except the error
	returnsError bool           // the last result is an error
	async        bool           // the only result is a future
}

var (
	contextType = reflect.TypeFor[context.Context]()
	errorType   = reflect.TypeFor[error]()
	futureType  = reflect.TypeFor[future.Any]()
)

// newFuncHandler returns the handler that calls fn. The error is not nil if fn is not a function or
// is nil, if async is false and fn returns a future, or if async is true and a future is not the
// only result of fn.
func newFuncHandler(fn reflect.Value, async bool) (*funcHandler, error) {
	if fn.Kind() != reflect.Func || fn.IsNil() {
		return nil, fmt.Errorf("want a function, got %v", describeValue(fn))
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
			h.returnsError = true
			continue
		}
		h.out = append(h.out, t.Out(i))
	}
	if async && (len(h.out) != 1 || h.returnsError || !h.out[0].Implements(futureType)) {
		return nil, fmt.Errorf("an asynchronous function must return a *Future and nothing else, but this is a %v", t)
	}
	for _, out := range h.out {
		if !async && out.Implements(futureType) {
			return nil, fmt.Errorf("%w, ReflectAsyncFunc or Methods", ErrFuture)
		}
	}
	return h, nil
}

// describeValue returns the type of v for errors, or "nil" if v is the zero Value.
func describeValue(v reflect.Value) string {
	if !v.IsValid() {
		return "nil"
	}
	return v.Type().String()
}

// Open implements Handler for calls by a Func: it decodes the only argument and returns the task
// that calls the function. If the function takes or returns more than a Func can have, or the
// argument cannot be decoded, the error matches ErrArguments.
func (h *funcHandler) Open(r *Request) (Task, error) {
	args := h.newArgs()
	switch {
	case len(args) > 1 || h.variadic || len(h.out) > 1:
		return nil, fmt.Errorf("%w: the function takes %s and has %d results: call it with Invoke", ErrArguments, signatureOf(args, h.variadic), len(h.out))
	case len(args) == 0:
		return h.task(args), decodeArgs(r, new(None))
	default:
		return h.task(args), decodeArgs(r, args[0].Addr().Interface())
	}
}

func (h *funcHandler) openInvoked(r *Request, v *invocation) (Task, error) {
	args := h.newArgs()
	if v.Named != nil && len(args) == 1 && !h.variadic {
		return h.task(args), v.bindOnly(args[0])
	}
	return h.task(args), v.bindPositional(args, h.variadic)
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

// Run implements Task: it calls the function with the decoded arguments and replies with its
// results or its error. For a function that returns a future, Run replies once the future is done,
// and itself returns before.
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
	if t.returnsError {
		last := len(results) - 1
		if err, _ := results[last].Interface().(error); err != nil {
			r.failLogged(err)
			return
		}
		results = results[:last]
	}
	if t.async {
		f, _ := results[0].Interface().(future.Any)
		r.replyFuture(ctx, f)
		return
	}
	var reply any = &None{} // of a function without results
	if r.resultType() == invokeType {
		values := make([]any, len(results))
		for i, v := range results {
			values[i] = v.Interface()
		}
		reply = &values
	} else if len(results) > 0 { // there is only one, see Open
		ptr := reflect.New(results[0].Type())
		ptr.Elem().Set(results[0])
		reply = ptr.Interface()
	}
	_ = r.Reply(reply) // an error is the reply instead
}

// replyFuture replies to the request with the value or the error of f once f is done. It does not
// block. If ctx ends before f is done, f is cancelled with the cause of ctx. If f is nil, the reply
// is an error that matches ErrResult.
func (r *Request) replyFuture(ctx context.Context, f future.Any) {
	if f == nil || reflect.ValueOf(f).IsNil() {
		r.failLogged(fmt.Errorf("%w: the asynchronous function returned no future", ErrResult))
		return
	}
	stop := context.AfterFunc(ctx, func() { f.Cancel(ctxerr.Cause(ctx)) })
	reply := func(ptr any, err error) {
		stop()
		if err != nil {
			r.failLogged(err)
			return
		}
		_ = r.replyResult(ptr)
	}
	if err := future.OnValue(f, reply); err != nil {
		r.failLogged(err)
	}
}
