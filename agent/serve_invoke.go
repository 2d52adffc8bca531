package agent

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
)

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
