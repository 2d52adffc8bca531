package agent

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// The types of requests that Request.Delegate accepts, see Request.Type.
const (
	TypeFunc   = ""         // the call of a Func
	TypeInvoke = invokeType // the call of a function by Agent.Invoke
	TypeOp     = opType     // the call of an operator by Agent.Op
)

// Kept is the result of a function that has run on behalf of a handler, see Request.Delegate.
type Kept struct {
	// Value points to the result, in memory of its own: a *R for a Func[A, R], a *[]any with all
	// results for TypeInvoke and TypeOp.
	Value any

	borrowed []*tensor.Storage
}

// Drop makes the memory of the arguments reusable that the function borrowed, see WithBorrowedArgs.
// The result, which may be a view of it, must not be used after that. Drop must be called once, and
// does nothing for other functions.
func (k *Kept) Drop() {
	for _, s := range k.borrowed {
		if s != nil { // nil for memory that a PlaceFunc has chosen
			s.Release()
		}
	}
	k.borrowed = nil
}

// delegation is a function that runs on behalf of a handler of another type.
type delegation struct {
	typ  string
	done func(*Kept, error)
}

// Delegate makes a request of another type call the function, method or operator that Request.Name
// names, as a request of the type typ would: TypeFunc, TypeInvoke or TypeOp. It decodes the
// arguments, and returns the task that runs the function, with the options with which it is served
// except WithOnce and WithArgsInto. Handler.Open calls Delegate, and returns that task.
//
// When the function has returned, done is called with its result or its error, in place of a reply.
// done must reply to the request, at once or later, and does not block: it runs on the goroutine of
// the function, or for an asynchronous function on the one that completed the future. It owns the
// result. If the request is rejected before the function runs, done is not called.
//
// The error of Delegate, which Open returns, matches ErrNoFunction if there is no such function,
// ErrArguments if the arguments are not those of the function, or ErrConfig for another typ.
func (r *Request) Delegate(typ string, done func(*Kept, error)) (Task, error) {
	if typ != TypeFunc && typ != TypeInvoke && typ != TypeOp {
		return nil, r.wrapError(fmt.Errorf("%w: a request cannot be delegated to the type %q", ErrConfig, typ))
	}
	if r.message == nil {
		return nil, r.wrapError(fmt.Errorf("%w: requests are delegated before Open returns", ErrConfig))
	}
	e, ok := r.conn.agent.handlers.lookup([]byte(typ), []byte(r.Name()))
	if !ok {
		e = handlerEntry{typ: typ, name: r.Name()}
	}
	if e.Handler == nil {
		return nil, e.missing()
	}
	r.handler.short = e.short
	if e.borrows {
		r.borrowed = slices.Clone(r.message.storages)
	}
	task, err := e.Handler.Open(r)
	if err != nil {
		return nil, err
	}
	r.delegate.Store(&delegation{typ, done})
	return task, nil
}

// keep passes the result to which ptr points, or err if that is not nil, to the handler that has
// delegated the request, and returns true. It returns false if no handler has, or if this was done
// before: the caller then replies to the request.
func (r *Request) keep(ptr any, err error) bool {
	d := r.delegate.Swap(nil)
	if d == nil {
		return false
	}
	if err != nil {
		d.done(nil, err)
		return true
	}
	// A copy, because ptr may point into the task, which also has the arguments.
	result := reflect.New(reflect.TypeOf(ptr).Elem())
	result.Elem().Set(reflect.ValueOf(ptr).Elem())
	k := &Kept{Value: result.Interface(), borrowed: r.borrowed}
	r.borrowed = nil
	d.done(k, nil)
	return true
}

// resultType returns the type by which the result of the function that serves the request is
// encoded: that of the request, or the one to which it was delegated.
func (r *Request) resultType() string {
	if d := r.delegate.Load(); d != nil {
		return d.typ
	}
	return r.handler.typ
}
