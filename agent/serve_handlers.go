package agent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/aten"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// reservedTypes is the prefix of the types of messages that the agent itself serves.
const reservedTypes = "agent."

// handlerEntry is a handler with its name and its options.
type handlerEntry struct {
	typ, name string
	short     bool      // see WithShort
	once      bool      // see WithOnce
	borrows   bool      // see WithBorrowedArgs
	hostOnly  bool      // see HostHandler
	place     PlaceFunc // see WithArgsInto
	Handler
	invoked Handler        // of a function: for the messages of Invoke
	stream  *streamHandler // of a function that is a stream
}

// handlers are the functions and the types of messages that a worker serves. They do not
// change.
type handlers struct {
	funcs map[string]handlerEntry
	types map[string]handlerEntry
}

// newHandlers returns the functions, message types and operators that the configuration c serves.
// The error matches ErrConfig if an entry is invalid, or if a name is reserved, too long or used
// twice.
func newHandlers(c *Config) (*handlers, error) {
	h := &handlers{funcs: map[string]handlerEntry{}, types: map[string]handlerEntry{}}
	for _, f := range c.Funcs {
		switch _, twice := h.funcs[f.entry.name]; {
		case f.err != nil:
			return nil, f.err
		case twice:
			return nil, fmt.Errorf("%w: function %s is served twice", ErrConfig, f.entry.name)
		case f.entry.name == "" || len(f.entry.name) > wire.MaxName:
			return nil, fmt.Errorf("%w: the name of a function has 1 to %d bytes, got %.50q", ErrConfig, wire.MaxName, f.entry.name)
		}
		h.funcs[f.entry.name] = f.entry
	}
	for typ, handler := range c.Handlers {
		if typ == "" || len(typ) > wire.MaxName || handler == nil {
			return nil, fmt.Errorf("%w: handler of type %.50q: want a name of 1 to %d bytes, and a handler", ErrConfig, typ, wire.MaxName)
		}
		if strings.HasPrefix(typ, reservedTypes) {
			return nil, fmt.Errorf("%w: handler of type %s: types that begin with %s are reserved", ErrConfig, typ, reservedTypes)
		}
		_, short := handler.(ShortHandler)
		_, hostOnly := handler.(HostHandler)
		h.types[typ] = handlerEntry{typ: typ, Handler: handler, short: short, hostOnly: hostOnly}
	}
	if _, taken := h.types[opType]; taken {
		return nil, fmt.Errorf("%w: handler of type %s: use Config.Operators", ErrConfig, opType)
	}
	h.types[opType] = handlerEntry{typ: opType, Handler: opHandler{c.Operators}}
	return h, nil
}

// ShortHandler is a Handler whose tasks are short: the conditions of WithShort apply to them.
type ShortHandler interface {
	Handler

	// Short is not called: it marks the type.
	Short()
}

// HostHandler is a Handler whose tasks enqueue no work on devices: their contexts have no streams. Tensors in the replies
// are sent after the work of their own streams.
type HostHandler interface {
	Handler

	// HostOnly is not called: it marks the type.
	HostOnly()
}

// lookup returns the handler of a request of that type and name and true, or false if there is
// none. For a function that is served in another way than the type asks for, it returns true and an
// entry whose Handler is nil. It does not keep typ and name.
func (h *handlers) lookup(typ, name []byte) (handlerEntry, bool) {
	if len(typ) == 0 {
		e, ok := h.funcs[string(name)]
		return e, ok
	}
	if string(typ) == invokeType {
		e, ok := h.funcs[string(name)]
		e.typ, e.Handler = invokeType, e.invoked
		return e, ok
	}
	if e, ok := h.funcs[string(name)]; ok && isStreamType(string(typ)) {
		e.typ, e.Handler = string(typ), nil
		if e.stream != nil && e.stream.typ == e.typ {
			e.Handler = e.stream
		}
		return e, true
	}
	e, ok := h.types[string(typ)]
	e.name = string(name)
	return e, ok
}

// missing returns the error for a request that this worker does not serve. It matches ErrNoFunction.
// If the worker serves the name as a stream that the request does not open, the text has the kind of
// that stream. The error of the call names the function and the worker.
func (e *handlerEntry) missing() error {
	what := "function"
	switch {
	case e.stream != nil:
		return fmt.Errorf("%w: the name is that of a %s", ErrNoFunction, streamKinds[e.stream.typ])
	case isStreamType(e.typ):
		what = streamKinds[e.typ]
	case e.typ != "" && e.typ != invokeType:
		return fmt.Errorf("%w: no messages of that type", ErrNoFunction)
	}
	return fmt.Errorf("%w: no %s of that name", ErrNoFunction, what)
}

// Methods returns entries for Config.Funcs by which the worker serves all exported methods of
// value, each under the name prefix, a dot and the method's name. The methods are served as by
// ReflectFunc, or as by ReflectAsyncFunc if the only result is a *Future. Several calls may run at
// once, so the methods must be safe for concurrent use. If value is nil or has no exported methods,
// Join fails with an error that matches ErrConfig.
//
// All workers of the group can call all these methods. To serve only some methods, pass their
// method values to ReflectFunc.
func Methods(prefix string, value any, opts ...ServeOption) Funcs {
	v := reflect.ValueOf(value)
	if !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() || v.NumMethod() == 0 {
		err := fmt.Errorf("%w: %s: want a value with exported methods, got %v", ErrConfig, prefix, describeValue(v))
		return Funcs{{entry: handlerEntry{name: prefix}, err: err}}
	}
	var all Funcs
	for i := range v.NumMethod() {
		method := v.Method(i)
		name := prefix + "." + v.Type().Method(i).Name
		t := method.Type()
		async := t.NumOut() == 1 && t.Out(0).Implements(futureType)
		all = append(all, reflected(name, method.Interface(), async, opts))
	}
	return all
}

// opType is the type of the messages that call an operator. The name of a message is that of
// the operator.
const opType = "aten"

// Op calls an operator of the worker's table, see Config.Operators, and returns its results:
//
//	sum, err := agent.One[*tensor.Tensor](a.Op(ctx, "worker1", "aten::add", x, y, agent.Named{"alpha": 2}))
//
// See package aten for names and values. A Named among args gives arguments by the names of the
// schema, a CallOption changes the call. The memory of args is free when Op returns. The error is
// as that of Func.Call. It matches ErrArguments for arguments that do not fit the schema, and
// ErrNoFunction for an operator that is not in the worker's table.
func (a *Agent) Op(ctx context.Context, to To, name string, args ...any) ([]any, error) {
	return a.invoke(ctx, target{to: to, typ: opType, name: name}, args)
}

// OpAsync calls an operator as Op does, but returns a future of the results instead of waiting for
// them. It blocks only while it opens a pipe to the worker, or while the calls in progress to the
// worker use up Limits.CallBytes. The memory of args is in use until the future is done. Every
// error fails the future.
func (a *Agent) OpAsync(ctx context.Context, to To, name string, args ...any) *Future[[]any] {
	return a.invokeAsync(ctx, target{to: to, typ: opType, name: name}, args)
}

// opHandler serves the operators of a table.
type opHandler struct{ table *aten.Table }

func (h opHandler) Open(r *Request) (Task, error) {
	t := &opTask{}
	if err := decodeArgs(r, &t.invocation); err != nil {
		return nil, err
	}
	var err error
	t.op, t.args, err = h.table.Resolve(r.Name(), t.Args, t.Named)
	if err == nil {
		return t, nil
	}
	if _, unknown := errors.AsType[*aten.UnknownError](err); unknown {
		return nil, fmt.Errorf("%w: %w", ErrNoFunction, err)
	}
	return nil, fmt.Errorf("%w: %w", ErrArguments, err)
}

type opTask struct {
	invocation
	op      *aten.Operator
	args    []aten.Value
	results []any
}

// Run implements Task: it runs the operator with the decoded arguments, and replies with its
// results or its error.
func (t *opTask) Run(ctx context.Context, r *Request) {
	var err error
	if t.results, err = t.op.Run(ctx, t.args); err != nil {
		r.failLogged(err)
		return
	}
	_ = r.Reply(&t.results) // an error is the reply instead
}

// shortElements bounds the elements of the arguments of an operator that runs on the leader. By
// broadcasting or as a product the result has at most a quarter of its square, which takes some
// ten microseconds. Without elements that bound does not hold: the product of [n, 0] and [0, n]
// has n*n elements.
const shortElements = 256

// Short implements ShortTask.
func (t *opTask) Short() bool {
	if !t.op.Short {
		return false
	}
	elements := 0
	for _, v := range t.args {
		switch v := v.(type) {
		case *tensor.Sparse:
			return false
		case interface{ Len() int }: // a tensor or a Variable
			if v.Len() == 0 {
				return false
			}
			elements += v.Len()
		case nil, int64, float64, bool, string:
		default: // a list of any length
			return false
		}
	}
	return elements <= shortElements
}

// ShortTask is a Task that may be short, which may depend on its arguments: if Short reports true, the
// conditions of WithShort apply to it.
type ShortTask interface {
	Task
	Short() bool
}
