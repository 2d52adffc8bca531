package agent

import (
	"context"
	"fmt"
	"math"
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

// replyFuture replies to the request with the value or the error of f once f is done. The tensors of the
// value are sent after the work that computes it, see future.SetOn. replyFuture does not block. If ctx ends
// before f is done, f is cancelled with the cause of ctx. If f is nil, the reply is an error that matches
// ErrResult.
func (r *Request) replyFuture(ctx context.Context, f future.Any) {
	if f == nil || reflect.ValueOf(f).IsNil() {
		r.failLogged(fmt.Errorf("%w: the asynchronous function returned no future", ErrResult))
		return
	}
	stop := context.AfterFunc(ctx, func() { f.Cancel(ctxerr.Cause(ctx)) })
	reply := func(ptr any, err error) {
		stop()
		if err == nil {
			err = future.Await(ctx, f) // the streams of ctx wait for the work that computes the value
		}
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

// assign sets dst to value, a decoded value of any type. A number may change its type if the new
// type can hold it. A bool or a string may get a type with another name. nil becomes the zero value
// of a type that can be nil. If dst cannot hold value, the text of the error describes the value
// and the type that dst needs, and dst may have changed.
func assign(dst reflect.Value, value any) error {
	src := reflect.ValueOf(value)
	if !src.IsValid() {
		switch dst.Kind() {
		case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Map:
			dst.SetZero()
			return nil
		}
		return fmt.Errorf("nil, want %v", dst.Type())
	}
	if src.Type().AssignableTo(dst.Type()) {
		dst.Set(src)
		return nil
	}
	if assignNumber(dst, src) {
		return nil
	}
	switch kind := dst.Kind(); {
	case isNumber(kind) && isNumber(src.Kind()):
		return fmt.Errorf("%v %v, which %v cannot hold", src.Type(), value, dst.Type())
	case kind == src.Kind() && (kind == reflect.Bool || kind == reflect.String):
		dst.Set(src.Convert(dst.Type()))
		return nil
	}
	return fmt.Errorf("%v, want %v", src.Type(), dst.Type())
}

func isNumber(k reflect.Kind) bool {
	return k >= reflect.Int && k <= reflect.Complex128 && k != reflect.Uintptr
}

// assignNumber sets dst to src and returns true if both are numbers and dst can hold src. A float
// may be rounded to fewer digits, an integer may not. If it returns false dst may have changed.
func assignNumber(dst, src reflect.Value) bool {
	switch {
	case dst.CanInt() && src.CanInt():
		return setInt(dst, src.Int())
	case dst.CanInt() && src.CanUint():
		return src.Uint() <= math.MaxInt64 && setInt(dst, int64(src.Uint()))
	case dst.CanUint() && src.CanInt():
		return src.Int() >= 0 && setUint(dst, uint64(src.Int()))
	case dst.CanUint() && src.CanUint():
		return setUint(dst, src.Uint())
	case dst.CanFloat() && src.CanFloat():
		return !dst.OverflowFloat(src.Float()) && set(dst, src)
	case dst.CanFloat() && src.CanInt():
		return setIfExact(dst, src) && dst.Convert(src.Type()).Int() == src.Int()
	case dst.CanFloat() && src.CanUint():
		return setIfExact(dst, src) && dst.Convert(src.Type()).Uint() == src.Uint()
	case dst.CanComplex() && src.CanComplex():
		return !dst.OverflowComplex(src.Complex()) && set(dst, src)
	}
	return false
}

// setIfExact sets dst, a float, to src, an integer. It reports whether the type of dst can hold
// all integers up to the magnitude of src; dst changes in any case.
func setIfExact(dst, src reflect.Value) bool {
	digits := 53
	if dst.Kind() == reflect.Float32 {
		digits = 24
	}
	set(dst, src)
	return math.Abs(dst.Float()) <= float64(uint64(1)<<digits)
}

func set(dst, src reflect.Value) bool {
	dst.Set(src.Convert(dst.Type()))
	return true
}

func setInt(dst reflect.Value, n int64) bool {
	if dst.OverflowInt(n) {
		return false
	}
	dst.SetInt(n)
	return true
}

func setUint(dst reflect.Value, n uint64) bool {
	if dst.Kind() == reflect.Uintptr || dst.OverflowUint(n) {
		return false
	}
	dst.SetUint(n)
	return true
}
