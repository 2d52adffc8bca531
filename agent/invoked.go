package agent

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// invocable is a handler that takes calls by name, too.
type invocable interface {
	Handler

	// openInvoked is Open where the arguments have come.
	openInvoked(r *Request, v *invocation) (Task, error)
}

// invokedHandler serves calls by name.
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
	return t, v.toOne(r.Name(), reflect.ValueOf(&t.args).Elem())
}

func (h *asyncHandler[A, R]) openInvoked(r *Request, v *invocation) (Task, error) {
	t := &asyncTask[A, R]{handler: h}
	return t, v.toOne(r.Name(), reflect.ValueOf(&t.args).Elem())
}

var noneType = reflect.TypeFor[None]()

// toOne sets the only argument of a function. A None is no argument.
func (v *invocation) toOne(name string, arg reflect.Value) error {
	if arg.Type() == noneType {
		return v.toEach(name, nil, false)
	}
	if v.Named != nil {
		return v.toFields(name, arg)
	}
	return v.toEach(name, []reflect.Value{arg}, false)
}

// toEach sets the arguments of a function, of which the last is a slice of all that
// are left if it is variadic.
func (v *invocation) toEach(name string, args []reflect.Value, variadic bool) error {
	if len(v.Named) > 0 {
		return fmt.Errorf("%w: %s takes %s, which have no names", ErrArguments, name, signatureOf(args, variadic))
	}
	fixed := len(args)
	if variadic {
		fixed--
	}
	if len(v.Args) < fixed || len(v.Args) > fixed && !variadic {
		return fmt.Errorf("%w: %s takes %s, got %s", ErrArguments, name, signatureOf(args, variadic), given(v.Args))
	}
	if variadic {
		rest := len(v.Args) - fixed
		args[fixed].Set(reflect.MakeSlice(args[fixed].Type(), rest, rest))
	}
	for i, value := range v.Args {
		dst := args[min(i, len(args)-1)]
		if i >= fixed {
			dst = dst.Index(i - fixed)
		}
		if err := assign(dst, value); err != nil {
			return fmt.Errorf("%w: %s takes %s: argument %d is %w", ErrArguments, name, signatureOf(args, variadic), i, err)
		}
	}
	return nil
}

// toFields sets the fields of a struct that is the only argument of a function. Those
// that are not given are zero.
func (v *invocation) toFields(name string, arg reflect.Value) error {
	t := arg.Type()
	if t.Kind() != reflect.Struct || len(v.Args) > 0 {
		return fmt.Errorf("%w: %s takes %s, got %s and %d by name", ErrArguments, name, signatureOf([]reflect.Value{arg}, false), given(v.Args), len(v.Named))
	}
	fields := map[string]int{}
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() {
			fields[argumentName(f)] = i
		}
	}
	for key, value := range v.Named {
		i, ok := fields[key]
		if !ok {
			names := slices.Sorted(maps.Keys(fields))
			return fmt.Errorf("%w: %s has no argument %.100q, but %s", ErrArguments, name, key, strings.Join(names, ", "))
		}
		if err := assign(arg.Field(i), value); err != nil {
			return fmt.Errorf("%w: %s: argument %s is %w", ErrArguments, name, key, err)
		}
	}
	return nil
}

// argumentName is what a field is called in a Named, as on the wire.
func argumentName(f reflect.StructField) string {
	if name := f.Tag.Get("tensorpipe"); name != "" {
		return name
	}
	return f.Name
}

// signatureOf is how errors call what a function takes.
func signatureOf(args []reflect.Value, variadic bool) string {
	var words []string
	for i, arg := range args {
		word := arg.Type().String()
		if variadic && i == len(args)-1 {
			word = "..." + arg.Type().Elem().String()
		}
		words = append(words, word)
	}
	return counted(words)
}

// given is how errors call what was given.
func given(args []any) string {
	const shown = 16
	var words []string
	for i, arg := range args {
		if i == shown {
			words = append(words, fmt.Sprintf("and %d more", len(args)-shown))
			break
		}
		words = append(words, fmt.Sprintf("%T", arg))
	}
	return counted(words)
}

func counted(words []string) string {
	if len(words) == 0 {
		return "no arguments"
	}
	return "arguments (" + strings.Join(words, ", ") + ")"
}

// answer replies with the result of a function, in the way in which it was called.
func (r *Request) answer(result any) error {
	if r.handler.typ != invokeType {
		return r.Reply(result)
	}
	results := []any{}
	if v := reflect.ValueOf(result).Elem(); v.Type() != noneType {
		results = append(results, v.Interface())
	}
	return r.Reply(&results)
}
