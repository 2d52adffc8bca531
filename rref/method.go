package rref

import (
	"context"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/codec"
)

// The types of calls of methods, and of those whose result the owner keeps.
const (
	typeCall       = "rref.call"
	typeCallRemote = "rref.call.remote"
)

// Method is the name of a method of values of type M, with the types of its argument and its result.
// Callers call the method with it; the owner serves it by listing the result of Serve.
type Method[M, A, R any] struct{ name, typ string }

// NewMethod returns the Method with the given name, which is the same on all workers.
func NewMethod[M, A, R any](name string) Method[M, A, R] {
	return Method[M, A, R]{name, codec.TypeName(reflect.TypeFor[M]())}
}

// Methods are the methods that a worker serves, for Options.Methods.
type Methods []ServedMethod

// ServedMethod is a method that a worker serves.
type ServedMethod struct {
	name     string
	typ      reflect.Type // of the value
	typeName string
	open     func(*agent.Request) (methodTask, error)
}

// methodTask is a call of a method whose argument is decoded.
type methodTask interface {
	// call calls the method on the value to which ptr points, and returns a pointer to the result.
	call(ctx context.Context, ptr any) (any, error)
}

// Serve returns the entry for Options.Methods by which the owner of a value of type M calls fn with
// it, for example a method expression. fn owns its argument. Calls may run concurrently.
func (m Method[M, A, R]) Serve(fn func(M, context.Context, A) (R, error)) ServedMethod {
	s := ServedMethod{name: m.name, typ: reflect.TypeFor[M](), typeName: m.typ}
	if fn != nil {
		s.open = func(q *agent.Request) (methodTask, error) {
			t := &boundMethod[M, A, R]{fn: fn}
			return t, q.Decode(&t.args)
		}
	}
	return s
}

// ServeAsync returns an entry for Options.Methods as Serve does. The result or the error of a call is
// that of the future which fn returns. The call takes no handler slot while it waits for the future,
// which is cancelled when the caller cancels the call. If fn returns nil, the call fails with an error
// that matches agent.ErrResult.
func (m Method[M, A, R]) ServeAsync(fn func(M, context.Context, A) *agent.Future[R]) ServedMethod {
	if fn == nil {
		return m.Serve(nil)
	}
	return m.Serve(func(v M, ctx context.Context, args A) (result R, err error) {
		f := fn(v, ctx, args)
		if f == nil {
			return result, fmt.Errorf("%w: the asynchronous method returned no future", agent.ErrResult)
		}
		result, err = f.Wait(ctx)
		if cause := context.Cause(ctx); cause != nil {
			f.Cancel(cause)
		}
		return result, err
	})
}

type boundMethod[M, A, R any] struct {
	fn   func(M, context.Context, A) (R, error)
	args A
}

func (t *boundMethod[M, A, R]) call(ctx context.Context, ptr any) (any, error) {
	value, ok := ptr.(*M)
	if !ok {
		return nil, fmt.Errorf("%w: the method is of %v", ErrType, reflect.TypeFor[M]())
	}
	result, err := t.fn(*value, ctx, t.args)
	return &result, err
}

// check returns an error that matches agent.ErrConfig if a method is nil, or is served twice for the
// same type.
func (m Methods) check() error {
	type key struct {
		name string
		typ  reflect.Type
	}
	known := map[key]bool{}
	for _, s := range m {
		k := key{s.name, s.typ}
		if s.open == nil || s.name == "" || known[k] {
			return fmt.Errorf("%w: method %q of %v: want a name and a function, once", agent.ErrConfig, s.name, s.typ)
		}
		known[k] = true
	}
	return nil
}

// find returns the method with that name of the type with that name. If the name is served for one type
// only, that type may have another name, such as that of an interface. It returns nil if there is none.
func (m Methods) find(name string, typ []byte) *ServedMethod {
	var only *ServedMethod
	found := 0
	for i := range m {
		if s := &m[i]; s.name == name {
			if s.typeName == string(typ) {
				return s
			}
			only = s
			found++
		}
	}
	if found > 1 {
		return nil
	}
	return only
}

// Call calls the method on the value of f, on its owner, and waits for the result. The call waits
// until the value exists. The memory of args is free when Call returns. The error is that of the
// method, or as that of Ref.ToHere; it matches ErrNoMethod if the owner does not serve the method for
// values of that type.
func (m Method[M, A, R]) Call(ctx context.Context, f *Ref[M], args A, opts ...agent.CallOption) (R, error) {
	return callOn[A, R](ctx, f.get(), typeCall, m.name, m.typ, args, opts)
}

// Go calls the method as Call does, but returns a future of the result instead of waiting for it.
func (m Method[M, A, R]) Go(ctx context.Context, f *Ref[M], args A, opts ...agent.CallOption) *agent.Future[R] {
	return goOn[A, R](ctx, f.get(), typeCall, m.name, m.typ, args, opts)
}

// Remote calls the method as Call does; the owner keeps the result, and Remote returns a reference to
// it at once. Errors are as those of package function Remote.
func (m Method[M, A, R]) Remote(ctx context.Context, f *Ref[M], args A, opts ...agent.CallOption) *Ref[R] {
	return remoteOn[A, R](ctx, f.get(), typeCallRemote, m.name, m.typ, args, opts)
}

// useForCall adds a use of the reference of h for a call, which the caller ends with unuse. It returns
// an error if the reference has failed or was released.
func (h *handle) useForCall() (*core, error) {
	c, err := h.useFor("call")
	if err != nil {
		return nil, err
	}
	if err := c.checkUsable(); err != nil {
		c.unuse()
		return nil, err
	}
	return c, nil
}

// callOn calls what name names, with args, on the value of h, and waits for the result: a method of the
// type with the name valueType, or an operator. typ is the type of the message.
func callOn[A, R any](ctx context.Context, h *handle, typ, name, valueType string, args A, opts []agent.CallOption) (R, error) {
	var zero R
	c, err := h.useForCall()
	if err != nil {
		return zero, err
	}
	defer c.unuse()
	ctx, stop := c.whileUsable(ctx)
	defer stop()
	result, err := agent.NewMessageType[A, R](typ).Call(ctx, c.refs.agent, agent.To(c.owner.Name), name, args, append(slices.Clip(opts), c.target(valueType))...)
	if err != nil {
		return zero, c.explain(err)
	}
	return result, nil
}

// goOn does what callOn does, but returns a future of the result.
func goOn[A, R any](ctx context.Context, h *handle, typ, name, valueType string, args A, opts []agent.CallOption) *agent.Future[R] {
	c, err := h.useForCall()
	if err != nil {
		failed := &agent.Future[R]{}
		_ = failed.Fail(err)
		return failed
	}
	ctx, stop := c.whileUsable(ctx)
	g := agent.NewMessageType[A, R](typ).Go(ctx, c.refs.agent, agent.To(c.owner.Name), name, args, append(slices.Clip(opts), c.target(valueType))...)
	g.Observe(func() {
		stop()
		c.unuse()
	})
	return g
}

// remoteOn does what callOn does, but the owner keeps the result, to which remoteOn returns a reference.
func remoteOn[A, R any](ctx context.Context, h *handle, typ, name, valueType string, args A, opts []agent.CallOption) *Ref[R] {
	c, err := h.useForCall()
	if err != nil {
		return failedRef[R](h, err)
	}
	a, to := c.refs.agent, agent.To(c.owner.Name)
	created := create(ctx, a, to, func(ctx context.Context, o []agent.CallOption) *agent.Future[uint64] {
		return agent.NewMessageType[A, uint64](typ).Go(ctx, a, to, name, args, o...)
	}, append(slices.Clip(opts), c.target(valueType)))
	created.creation().Observe(func() { c.unuse() })
	return newRef[R](created)
}

// failedRef returns a reference that has failed with err, on the owner of h. It returns nil if h is.
func failedRef[R any](h *handle, err error) *Ref[R] {
	if h == nil || h.core == nil {
		return nil
	}
	c := h.core
	r := c.refs
	label, forkLabel := r.newLabel(), r.newLabel()
	r.mu.Lock()
	n := r.newCore(c.owner.worker, label, forkLabel, newForkID())
	r.mu.Unlock()
	n.settle(&CreationError{n.text(), err})
	return newRef[R](n)
}

// targetHeader has the incarnation of the owner, the fork of the value whose method is called, the epoch
// of its lease, and the name of the type that the method is of.
const targetHeader = "rref.target"

// target returns the option that makes a call one of a method of the value of c. typ is the name of the
// type that the method is of.
func (c *core) target(typ string) agent.CallOption {
	t := c.fork()
	if c.isOwned() {
		t.ID = c.refs.localID(c)
	}
	data := make([]byte, 0, len(t.Owner)+len(t.ID)+8+len(typ))
	data = append(append(data, t.Owner[:]...), t.ID[:]...)
	data = binary.LittleEndian.AppendUint64(data, t.Epoch)
	return agent.WithHeader(targetHeader, append(data, typ...))
}

// localID returns an id by which messages of this worker to itself name the value of c, a reference
// on the owner. It is valid as long as c is in use.
func (r *Refs) localID(c *core) forkID {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.localID == nil {
		id := newForkID()
		c.localID = &id
		r.addLocalFork(c)
	}
	return *c.localID
}

// addLocalFork makes the local id of c known, if there is one, once the value of c is. The caller holds
// r.mu.
func (r *Refs) addLocalFork(c *core) {
	if c.localID != nil && c.value != nil {
		r.forks[*c.localID] = &fork{value: c.value, pins: 1}
		r.arrive(*c.localID, c.value)
	}
}

// callHandler serves calls of methods. If remote is true, the owner keeps the results. open decodes the
// arguments of a call of a value of the type with the name valueType; it returns nil if there is no such
// method.
type callHandler struct {
	refs   *Refs
	remote bool
	open   func(q *agent.Request, valueType []byte) (methodTask, error)
}

// openMethod is callHandler.open for Options.Methods.
func (r *Refs) openMethod(q *agent.Request, valueType []byte) (methodTask, error) {
	if s := r.options.Methods.find(q.Name(), valueType); s != nil {
		return s.open(q)
	}
	return nil, nil
}

// Open implements agent.Handler.
func (h callHandler) Open(q *agent.Request) (agent.Task, error) {
	r := h.refs
	t := &callTask{refs: r, method: q.Name()}
	data, ok := q.Header(targetHeader)
	if !ok || len(data) < 2*len(t.target)+8 {
		return nil, fmt.Errorf("%w: no header %s", agent.ErrProtocol, targetHeader)
	}
	if err := r.checkTarget([16]byte(data), binary.LittleEndian.Uint64(data[32:])); err != nil {
		return nil, err
	}
	copy(t.target[:], data[16:])
	var err error
	if t.bound, err = h.open(q, data[40:]); err != nil {
		return nil, err
	}
	if !h.remote { // if the method is not served, the error names the type of the value, which Run knows
		return t, nil
	}
	data, ok = q.Header(forkHeader)
	if !ok {
		return nil, fmt.Errorf("%w: no header %s", agent.ErrProtocol, forkHeader)
	}
	id, label, epoch, err := r.parseFork(data)
	if err != nil {
		return nil, err
	}
	if v, epoch := r.created(q, id); v != nil {
		return &repeatedTask{r, v, epoch}, nil
	}
	t.result, t.epoch, err = r.register(q, id, label, epoch)
	return t, err
}

// callTask is a call of a method.
type callTask struct {
	refs   *Refs
	method string
	target forkID
	bound  methodTask // nil if no such method is served
	result *value     // of a call whose result is kept
	epoch  uint64     // of the lease under which the caller refers to the result
}

// Run implements agent.Task. It waits until the value exists, without a handler slot.
func (t *callTask) Run(ctx context.Context, q *agent.Request) {
	ptr, err := t.call(ctx, q.Incarnation())
	switch {
	case t.result != nil:
		var kept *agent.Kept
		if err == nil {
			kept, err = q.Keep(ptr)
		}
		if err != nil {
			ptr = nil
		}
		t.refs.complete(t.result, ptr, kept, err)
		replyCreated(ctx, q, t.epoch, err)
	case err != nil:
		_ = q.Fail(err)
	default:
		_ = q.Reply(ptr) // an error becomes the reply
	}
}

// Rejected implements agent.RejectedTask.
func (t *callTask) Rejected(err error) {
	if t.result != nil {
		t.refs.complete(t.result, nil, nil, err)
	}
}

// call calls the method for a request of the incarnation from, and returns a pointer to the result.
func (t *callTask) call(ctx context.Context, from [16]byte) (ptr any, err error) {
	v := t.refs.holdReady(t.target)
	if v == nil {
		found := agent.Future[*value]{}
		t.refs.find(ctx, t.target, from, func(v *value, err error) {
			if err != nil {
				_ = found.Fail(err)
				return
			}
			t.refs.hold(v)
			t.refs.whenReady(ctx, v, func() { _ = found.Set(v) }, func() {
				_ = found.Fail(context.Cause(ctx))
				t.refs.unhold(v)
			})
		})
		if v, err = found.Wait(ctx); err != nil {
			found.Observe(func() {
				if v, err := found.Result(); err == nil {
					t.refs.unhold(v)
				}
			})
			return nil, err
		}
	}
	defer t.refs.unhold(v) // the method may use memory that the value has borrowed
	switch {
	case v.err != nil:
		return nil, v.err
	case t.bound == nil:
		return nil, fmt.Errorf("%w: type %s has no method %s that %s serves", ErrNoMethod, v.typ, t.method, t.refs.self.Name)
	}
	if err := v.order(ctx); err != nil {
		return nil, err
	}
	return t.bound.call(ctx, v.ptr)
}
