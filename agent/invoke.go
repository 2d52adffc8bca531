package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// invokeType is the type of the messages of Invoke, whose values have any types.
const invokeType = "agent.invoke"

// invocation is the argument of a message of type invokeType or opType: values by position and by
// name.
type invocation struct {
	Args  []any
	Named map[string]any
}

// Named holds arguments by name: the fields of the struct that a function takes, or the
// arguments of an operator by the names of its schema.
type Named map[string]any

// Invoke calls a function by its name and returns its results, however many there are. The
// arguments are those of the function, one after the other. For a Func, or any function of one
// struct, a Named can give the fields of the struct instead.
//
// The worker that is called converts the arguments to the types of the function. An integer
// becomes any integer or float type that can hold the number. A float or complex number may be
// rounded to fewer digits. A bool or a string becomes a type that differs only in its name. A nil
// becomes a nil pointer, interface, slice or map.
//
// The types of the values must be in the Registry of both workers. A CallOption among the
// arguments changes the call and is not passed to the function. The memory of the arguments is
// free when Invoke returns.
//
// The error is that of Func.Call. It matches ErrNoFunction if the worker does not serve the
// function, and ErrArguments if the arguments cannot be encoded or are not those of the function.
func (a *Agent) Invoke(ctx context.Context, to To, name string, args ...any) ([]any, error) {
	return a.invoke(ctx, target{to: to, typ: invokeType, name: name}, args)
}

// InvokeAsync calls a function by its name as Invoke does, but returns a future of the results
// instead of waiting for them. It blocks only while it opens a pipe to the worker, or while the
// calls in progress to the worker use up Limits.CallBytes. The memory of the arguments is in use
// until the future is done. Every error fails the future.
func (a *Agent) InvokeAsync(ctx context.Context, to To, name string, args ...any) *Future[[]any] {
	return a.invokeAsync(ctx, target{to: to, typ: invokeType, name: name}, args)
}

// invoke makes the call t with the values in args, waits, and returns the results of the function.
// The CallOptions among args change the call and are not sent. It implements Invoke and Op. The
// error is an *Error.
func (a *Agent) invoke(ctx context.Context, t target, args []any) ([]any, error) {
	t, v, err := a.splitArgs(t, args)
	if err != nil {
		return nil, err
	}
	var results []any
	err = a.roundTrip(ctx, t, &results, &v)
	return results, err
}

// invokeAsync makes the call t as invoke does, and returns a future of the results without waiting
// for them. It implements InvokeAsync and OpAsync. If args is invalid, the returned future has
// failed. The memory of args is in use until the future is done.
func (a *Agent) invokeAsync(ctx context.Context, t target, args []any) *Future[[]any] {
	t, v, err := a.splitArgs(t, args)
	if err != nil {
		return trackInScope(ctx, func() *Future[[]any] { return future.Failed[[]any](err) })
	}
	return callInScope[[]any](ctx, a, t, &v)
}

// splitArgs separates the arguments of Invoke or Op. It returns t with the CallOptions of args
// appended to its options, and the values to send: those in a Named by name, all others by
// position. If args has neither a CallOption nor a Named, the result shares the slice args. If args
// has two Named, the error is an *Error that matches ErrArguments.
func (a *Agent) splitArgs(t target, args []any) (target, invocation, error) {
	v := invocation{Args: args}
	isOption := func(arg any) bool {
		switch arg.(type) {
		case Named, CallOption:
			return true
		}
		return false
	}
	if !slices.ContainsFunc(args, isOption) {
		return t, v, nil
	}
	v.Args = nil
	for _, arg := range args {
		switch arg := arg.(type) {
		case CallOption:
			t.opts = append(t.opts, arg)
		case Named:
			if v.Named != nil {
				err := fmt.Errorf("%w: Named is given twice", ErrArguments)
				return t, v, &Error{Op: "call", Func: displayName(t.typ, t.name), Worker: string(t.to), Err: err}
			}
			v.Named = arg
		default:
			v.Args = append(v.Args, arg)
		}
	}
	return t, v, nil
}

// One returns the only result of Invoke or Op as an R:
//
//	n, err := agent.One[int](a.Invoke(ctx, "worker1", "math.max", 3, 4))
//
// If err is not nil, it returns the zero R and err. If there is not exactly one result, or if the
// result does not have the type R, the error matches ErrResult.
func One[R any](results []any, err error) (R, error) {
	var one R
	if err != nil {
		return one, err
	}
	if len(results) != 1 {
		return one, fmt.Errorf("%w: %d results, want one", ErrResult, len(results))
	}
	one, ok := results[0].(R)
	if !ok {
		return one, fmt.Errorf("%w: the result is %T, want %T", ErrResult, results[0], one)
	}
	return one, nil
}

// invocable is a handler of a function that serves the messages of Invoke as well.
type invocable interface {
	Handler

	// openInvoked is Open with arguments that are decoded.
	openInvoked(r *Request, v *invocation) (Task, error)
}

// invokedHandler serves the messages of Invoke for one function.
type invokedHandler struct{ invocable }

func (h invokedHandler) Open(r *Request) (Task, error) {
	var v invocation
	if err := decodeArgs(r, &v); err != nil {
		return nil, err
	}
	return h.openInvoked(r, &v)
}

func (h *plainHandler[A, R]) openInvoked(r *Request, v *invocation) (Task, error) {
	t := &plainTask[A, R]{handler: h}
	return t, v.bindOnly(reflect.ValueOf(&t.args).Elem())
}

func (h *asyncHandler[A, R]) openInvoked(r *Request, v *invocation) (Task, error) {
	t := &asyncTask[A, R]{handler: h}
	return t, v.bindOnly(reflect.ValueOf(&t.args).Elem())
}

var noneType = reflect.TypeFor[None]()

// bindOnly sets arg, the variable for the only argument of the function, from the arguments of the
// call: one by position, or the fields of a struct by name. If arg is of type
// None, the call must have no arguments. The error matches ErrArguments.
func (v *invocation) bindOnly(arg reflect.Value) error {
	if arg.Type() == noneType {
		return v.bindPositional(nil, false)
	}
	if v.Named != nil {
		return v.bindFields(arg)
	}
	return v.bindPositional([]reflect.Value{arg}, false)
}

// bindPositional sets args, the variables for the arguments of the function, to the positional
// arguments of the call. If variadic is true, the last of args is a slice, which gets
// all remaining arguments. The error matches ErrArguments if the number or the types do not fit, or
// if the call has arguments by name.
func (v *invocation) bindPositional(args []reflect.Value, variadic bool) error {
	if len(v.Named) > 0 {
		return fmt.Errorf("%w: the function takes %s, which have no names", ErrArguments, signatureOf(args, variadic))
	}
	fixed := len(args)
	if variadic {
		fixed--
	}
	if len(v.Args) < fixed || len(v.Args) > fixed && !variadic {
		return fmt.Errorf("%w: the function takes %s, got %s", ErrArguments, signatureOf(args, variadic), describeArgs(v.Args))
	}
	if variadic {
		n := len(v.Args) - fixed
		args[fixed].Set(reflect.MakeSlice(args[fixed].Type(), n, n))
	}
	for i, value := range v.Args {
		dst := args[min(i, len(args)-1)]
		if i >= fixed {
			dst = dst.Index(i - fixed)
		}
		if err := assign(dst, value); err != nil {
			return fmt.Errorf("%w: the function takes %s: argument %d is %w", ErrArguments, signatureOf(args, variadic), i, err)
		}
	}
	return nil
}

// bindFields sets the fields of arg, a struct that is the only argument of the function, to the
// arguments that the call gives by name. Fields that are not given stay zero. The
// error matches ErrArguments if arg is no struct, if the call also has positional arguments, or if
// a name or a type does not fit.
func (v *invocation) bindFields(arg reflect.Value) error {
	t := arg.Type()
	if t.Kind() != reflect.Struct || len(v.Args) > 0 {
		return fmt.Errorf("%w: the function takes %s, got %s and %d by name", ErrArguments, signatureOf([]reflect.Value{arg}, false), describeArgs(v.Args), len(v.Named))
	}
	fields := map[string]int{}
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() {
			fields[cmp.Or(f.Tag.Get("tensorpipe"), f.Name)] = i // as in the encoding
		}
	}
	for key, value := range v.Named {
		i, ok := fields[key]
		if !ok {
			names := slices.Sorted(maps.Keys(fields))
			return fmt.Errorf("%w: no argument %.100q, but %s", ErrArguments, key, strings.Join(names, ", "))
		}
		if err := assign(arg.Field(i), value); err != nil {
			return fmt.Errorf("%w: argument %s is %w", ErrArguments, key, err)
		}
	}
	return nil
}

// signatureOf returns the types of args, the parameters of a function, as text for error messages,
// such as "(int, ...string)". If variadic is true, the last one is shown with dots.
func signatureOf(args []reflect.Value, variadic bool) string {
	var types []string
	for i, arg := range args {
		typ := arg.Type().String()
		if variadic && i == len(args)-1 {
			typ = "..." + arg.Type().Elem().String()
		}
		types = append(types, typ)
	}
	return argumentList(types)
}

// describeArgs returns the types of args, the arguments of a call, as text for error messages. It
// shows at most 16 of them.
func describeArgs(args []any) string {
	const shown = 16
	var types []string
	for i, arg := range args {
		if i == shown {
			types = append(types, fmt.Sprintf("and %d more", len(args)-shown))
			break
		}
		types = append(types, fmt.Sprintf("%T", arg))
	}
	return argumentList(types)
}

func argumentList(types []string) string {
	if len(types) == 0 {
		return "no arguments"
	}
	return "(" + strings.Join(types, ", ") + ")"
}

// replyResult replies with the value to which result points. The caller of a Func gets the value
// itself. The caller of Invoke gets a list with the value, which is empty for a None. The error is
// that of Reply; the caller of the function gets it as well.
func (r *Request) replyResult(result any) error {
	if r.resultType() != invokeType {
		return r.Reply(result)
	}
	results := []any{}
	if v := reflect.ValueOf(result).Elem(); v.Type() != noneType {
		results = append(results, v.Interface())
	}
	return r.Reply(&results)
}
