package rref

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// Ref is a reference to a value of type T that one worker, the owner, keeps, as long as any worker
// has a reference to it. It may be an argument or a result of a call, also within other values; the
// receiver gets a reference of its own. The methods may be called from any goroutine.
//
// A reference that is no longer used should be released with Release. One that the garbage collector
// finds is released as well, some time later.
type Ref[T any] struct {
	handle
}

// Any is a reference to a value whose type the holder does not know or need. A Ref of any type is
// received as an Any, and an Any as a Ref of the type of the value.
type Any struct {
	handle
}

// handle is one copy of a reference that the application has.
type handle struct {
	core     *core
	released atomic.Bool
	cleanup  runtime.Cleanup
	typ      atomic.Pointer[agent.Future[string]] // of TypeAsync, once it has succeeded
}

// get returns the handle of f, or nil if f is nil, so that a nil reference gives an error.
func (f *Ref[T]) get() *handle {
	if f == nil {
		return nil
	}
	return &f.handle
}

func (a *Any) get() *handle {
	if a == nil {
		return nil
	}
	return &a.handle
}

// newRef returns a handle of c, and takes over one use of c.
func newRef[T any](c *core) *Ref[T] {
	f := &Ref[T]{}
	f.set(c, runtime.AddCleanup(f, (*core).forget, c))
	return f
}

// set makes h a handle of c. cleanup is run if the garbage collector finds it.
func (h *handle) set(c *core, cleanup runtime.Cleanup) {
	h.core, h.cleanup = c, cleanup
	c.refs.handleMade()
}

// Own returns a reference to v, a value of this worker. The value stays the application's: other
// workers get copies of its state when they fetch it, and methods of it are called on it. The
// methods of the result fail with an error that matches ErrNoAgent if a has no references, see New,
// and ErrClosed if a is closed.
func Own[T any](a *agent.Agent, v T) *Ref[T] {
	r, err := Of(a)
	if err != nil {
		return &Ref[T]{}
	}
	label := r.newLabel()
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return newRef[T](r.failedCore(label, ErrClosed))
	}
	value := r.newValue(label)
	r.mu.Unlock()
	r.complete(value, &v, nil, nil)
	return newRef[T](r.localCore(value))
}

// Release ends the use of the reference by this copy of it. When all copies of this worker are
// released, and nothing that uses them is under way, the owner is told. Release does not wait for
// that, and does nothing if the reference is released already or is nil.
func (f *Ref[T]) Release(ctx context.Context) error { return f.get().release() }

// Release ends the use of the reference, as that of Ref does.
func (a *Any) Release(ctx context.Context) error { return a.get().release() }

func (h *handle) release() error {
	if h == nil || h.core == nil || h.released.Swap(true) {
		return nil
	}
	h.cleanup.Stop()
	h.core.refs.handles.Add(-1)
	h.core.unuse()
	return nil
}

// use adds a use of the reference by a message that shares it. See useFor.
func (h *handle) use() (*core, error) { return h.useFor("share") }

// useFor adds a use of the reference, which the caller ends with core.unuse. The error matches
// ErrReleased or ErrNoAgent, and names op.
func (h *handle) useFor(op string) (*core, error) {
	if h == nil || h.core == nil {
		return nil, errNil
	}
	if h.released.Load() {
		return nil, h.useError(op, ErrReleased)
	}
	if err := h.core.use(); err != nil {
		return nil, h.useError(op, err)
	}
	return h.core, nil
}

var errNil = fmt.Errorf("%w: the reference is nil, or was made without an agent", ErrNoAgent)

// failedCore returns a reference on the owner, this worker, that has failed with err, with one use.
func (r *Refs) failedCore(label Label, err error) *core {
	return &core{
		refs: r, owner: r.here, label: label, forkLabel: label, since: time.Now(), uses: 1, state: failed, err: err,
		created: future.Failed[agent.None](err),
	}
}

// Owner returns the worker that has the value, or a zero WorkerInfo if the reference has no agent.
func (h *handle) Owner() (owner agent.WorkerInfo) {
	if h.core != nil {
		owner = h.core.owner.info()
	}
	return owner
}

// OwnerIncarnation returns the incarnation of the worker that has the value, or a zero one if the
// reference has no agent.
func (h *handle) OwnerIncarnation() (i agent.Incarnation) {
	if h.core != nil {
		i = h.core.owner.Incarnation
	}
	return i
}

// Agent returns the agent of this worker, or nil if the reference has none.
func (h *handle) Agent() *agent.Agent {
	if h.core == nil {
		return nil
	}
	return h.core.refs.agent
}

// OwnerName returns the name of the worker that has the value.
func (h *handle) OwnerName() string { return h.Owner().Name }

// IsOwner reports whether this worker has the value.
func (h *handle) IsOwner() bool { return h.core != nil && h.core.isOwned() }

// IsConfirmed reports whether the owner knows of this reference, and keeps the value for it.
func (h *handle) IsConfirmed() bool {
	if h.core == nil {
		return false
	}
	h.core.refs.mu.Lock()
	defer h.core.refs.mu.Unlock()
	return h.core.state == confirmed
}

// Created returns a future that is done when the owner has confirmed the reference: for one of
// Remote, when the value exists or its creation has failed. It fails with a *CreationError if it is
// not known whether the creation has reached the owner. An error of the function that makes the value
// is that of ToHere, and not of this future.
func (h *handle) Created() *agent.Future[agent.None] {
	if h.core == nil {
		return future.Failed[agent.None](errNil)
	}
	return h.core.creation()
}

// Label returns the label of the value. References of all workers to one value have equal labels. If a
// worker restarts with the same rank, its labels begin again.
func (h *handle) Label() (l Label) {
	if h.core != nil {
		l = h.core.label
	}
	return l
}

// ForkLabel returns the label of this worker's reference. On the owner it is that of the value.
func (h *handle) ForkLabel() (l Label) {
	if h.core != nil {
		l = h.core.forkLabel
	}
	return l
}

// String returns the reference as text, such as "rref 0.3 to value 0.2 on worker1".
func (f *Ref[T]) String() string { return f.get().String() }

// String returns the reference as text, as that of Ref does.
func (a *Any) String() string { return a.get().String() }

func (h *handle) String() string {
	switch {
	case h == nil || h.core == nil:
		return "nil rref"
	case h.IsOwner():
		return fmt.Sprintf("rref to own value %v", h.core.label)
	}
	return h.core.text()
}

// Equal reports whether both references are to the same value: whether they have the same owner, and
// equal labels.
func (f *Ref[T]) Equal(other *Ref[T]) bool {
	return f == other || f != nil && other != nil && f.core != nil && other.core != nil && f.core.owner.Incarnation == other.core.owner.Incarnation && f.core.label == other.core.label
}

// Local returns the value, on its owner, and waits until it exists. The value is not copied. The
// error matches ErrNotOwner on other workers, ErrReleased, or is that of the function that should
// have made the value.
func (f *Ref[T]) Local() (T, error) {
	var zero T
	c, err := f.get().useFor("local")
	if err != nil {
		return zero, err
	}
	defer c.unuse()
	if !f.IsOwner() {
		return zero, f.useError("local", ErrNotOwner)
	}
	return localValue[T](context.Background(), c)
}

// localValue waits until the value of c, a reference on the owner, is ready, and returns it.
func localValue[T any](ctx context.Context, c *core) (T, error) {
	var zero T
	v, err := c.awaitValue(ctx)
	if err != nil {
		return zero, err
	}
	if err := v.order(ctx); err != nil {
		return zero, err
	}
	p, ok := v.ptr.(*T)
	if ok {
		return *p, nil
	}
	one, ok := reflect.ValueOf(v.ptr).Elem().Interface().(T)
	if !ok {
		return zero, fmt.Errorf("%w: it is %s, want %v", ErrType, v.typ, reflect.TypeFor[T]())
	}
	return one, nil
}

// awaitValue waits until the value of c, a reference on the owner, is ready, and returns it. The
// error is that with which the creation failed, or the cause of ctx.
func (c *core) awaitValue(ctx context.Context) (*value, error) {
	if _, err := c.creation().Wait(ctx); err != nil {
		return nil, err
	}
	r := c.refs
	r.mu.Lock()
	v := c.value
	r.mu.Unlock()
	ready := agent.Future[agent.None]{}
	r.whenReady(ctx, v, func() { _ = ready.Set(agent.None{}) }, nil)
	if _, err := ready.Wait(ctx); err != nil {
		return nil, err
	}
	return v, v.err
}

// ToHere returns the value: on the owner the value itself, on other workers a copy of what it is now.
// It waits until the value exists. The streams of ctx wait for the work that computes its tensors. The call ends with ctx or with the limit of opts; that does no
// harm to the reference. The error is that of the function that should have made the value, a
// *CreationError, or matches ErrReleased, ErrNoValue, ErrType, or one of the errors of a call.
func (f *Ref[T]) ToHere(ctx context.Context, opts ...agent.CallOption) (T, error) {
	var zero T
	c, err := f.get().useFor("fetch")
	if err != nil {
		return zero, err
	}
	defer c.unuse()
	if f.IsOwner() {
		ctx, cancel := c.refs.agent.CallContext(ctx, opts...)
		defer cancel()
		return localValue[T](ctx, c)
	}
	if err := c.checkUsable(); err != nil {
		return zero, err
	}
	ctx, stop := c.whileUsable(ctx)
	defer stop()
	result, err := agent.NewMessageType[target, T](typeFetch).Call(ctx, c.refs.agent, agent.To(c.owner.Name), "", c.fork(), opts...)
	if err != nil {
		return zero, c.explain(err)
	}
	return result, nil
}

// checkUsable returns nil, or the error with which the creation or the confirmation of the reference
// has failed.
func (c *core) checkUsable() error {
	c.refs.mu.Lock()
	defer c.refs.mu.Unlock()
	if c.state == failed {
		return c.err
	}
	return nil
}

// explain returns err, the error of a call about the reference, or in its place the error with which
// the creation of the reference has failed meanwhile.
func (c *core) explain(err error) error {
	c.refs.checkFenced(c.owner, err)
	return cmp.Or(c.checkUsable(), err)
}

// whileUsable returns ctx for a call about the reference: if the owner has not confirmed it, the
// result ends when the creation or the confirmation fails, since the owner may then never know the
// reference. The caller calls stop after the call.
func (c *core) whileUsable(ctx context.Context) (limited context.Context, stop func()) {
	c.refs.mu.Lock()
	created := c.created
	c.refs.mu.Unlock()
	if created == nil || created.IsDone() {
		return ctx, func() {}
	}
	limited, cancel := context.WithCancelCause(ctx)
	created.Observe(func() {
		if err := created.Err(); err != nil {
			cancel(err)
		}
	})
	return limited, func() { cancel(nil) }
}

// As returns a reference of type T to the value of a, which may be released before it. It does not
// check the type of the value, which ToHere does.
func As[T any](a *Any) (*Ref[T], error) {
	c, err := a.get().useFor("convert")
	if err != nil {
		return nil, err
	}
	return newRef[T](c), nil
}
