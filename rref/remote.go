package rref

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
	"github.com/tensorpipe-go/tensorpipe/agent/future"
)

// functionKinds are the kinds of functions whose results Remote refers to, and their types as
// requests of package agent.
var functionKinds = map[string]string{"func": agent.TypeFunc, "invoke": agent.TypeInvoke, "op": agent.TypeOp}

// forkHeader has the id and the label of the fork that a request creates, and the label of its value.
const forkHeader = "rref.fork"

// Remote runs fn with args on the worker that to addresses, which keeps the result, and returns a
// reference to it at once. The worker may be this one. The creation ends with its own limit, that of
// opts or of the agent, and not with ctx, whose values it has. When Created of the reference is done,
// the memory of args is free.
//
// All errors are those of the reference: of Created, if it is not known whether the worker has run
// fn, and otherwise of ToHere. They match ErrNoAgent if a has no references, see New.
func Remote[A, R any](ctx context.Context, a *agent.Agent, to agent.To, fn agent.Func[A, R], args A, opts ...agent.CallOption) *Ref[R] {
	c := create(ctx, a, to, func(ctx context.Context, o []agent.CallOption) *agent.Future[uint64] {
		return agent.NewMessageType[A, uint64](typeCreate+"func").Go(ctx, a, to, fn.Name(), args, o...)
	}, opts)
	return newCreated[R](c)
}

// newCreated returns a handle of c, or one without an agent if c is nil.
func newCreated[R any](c *core) *Ref[R] {
	if c == nil {
		return &Ref[R]{}
	}
	return newRef[R](c)
}

// RemoteOp runs an operator, as agent.Agent.Op does, and refers to its only result. See Remote.
func RemoteOp[R any](ctx context.Context, a *agent.Agent, to agent.To, name string, args ...any) *Ref[R] {
	return remoteInvoke[R](ctx, a, to, "op", name, args)
}

// RemoteInvoke runs a function by its name, as agent.Agent.Invoke does, and refers to its only
// result. See Remote.
func RemoteInvoke[R any](ctx context.Context, a *agent.Agent, to agent.To, name string, args ...any) *Ref[R] {
	return remoteInvoke[R](ctx, a, to, "invoke", name, args)
}

// invocation is the arguments of Invoke and Op in a message.
type invocation struct {
	Args  []any
	Named map[string]any
}

// newInvocation returns the arguments in args, those in an agent.Named by name, and the options in args.
func newInvocation(args []any) (v invocation, opts []agent.CallOption) {
	for _, arg := range args {
		switch arg := arg.(type) {
		case agent.CallOption:
			opts = append(opts, arg)
		case agent.Named:
			v.Named = arg
		default:
			v.Args = append(v.Args, arg)
		}
	}
	return v, opts
}

func remoteInvoke[R any](ctx context.Context, a *agent.Agent, to agent.To, kind, name string, args []any) *Ref[R] {
	v, opts := newInvocation(args)
	c := create(ctx, a, to, func(ctx context.Context, o []agent.CallOption) *agent.Future[uint64] {
		return agent.NewMessageType[invocation, uint64](typeCreate+kind).Go(ctx, a, to, name, v, o...)
	}, opts)
	return newCreated[R](c)
}

// create makes a reference to a value on the worker to, which send asks to make it, and returns the
// reference with one use. It returns nil if a has no references.
func create(ctx context.Context, a *agent.Agent, to agent.To, send func(context.Context, []agent.CallOption) *agent.Future[uint64], opts []agent.CallOption) *core {
	r, err := Of(a)
	if err != nil {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	info, err := a.Worker(ctx, to)
	owner := worker{Name: info.Name, Rank: info.Rank}
	if err == nil {
		owner.Incarnation, err = a.IncarnationOf(ctx, to)
	}
	id, label, forkLabel := newForkID(), r.newLabel(), r.newLabel()
	if err == nil && owner.Incarnation == r.self.Incarnation {
		return r.createHere(ctx, id, label, send, opts)
	}
	r.mu.Lock()
	c := r.newCore(owner, label, forkLabel, id)
	epoch := c.owner.lease.epoch
	r.mu.Unlock()
	if err != nil {
		c.settle(&CreationError{c.text(), err})
		return c
	}
	sent := time.Now()
	f := send(ctx, append(slices.Clip(opts), agent.WithHeader(forkHeader, appendFork(nil, owner, id, label, forkLabel, epoch))))
	f.Observe(func() {
		granted, err := f.Result()
		if err != nil {
			r.checkFenced(c.owner, err)
			c.settle(&CreationError{c.text(), err})
			return
		}
		c.confirm(granted, sent)
	})
	return c
}

// createHere is create for a value of this worker.
func (r *Refs) createHere(ctx context.Context, id forkID, label Label, send func(context.Context, []agent.CallOption) *agent.Future[uint64], opts []agent.CallOption) *core {
	r.mu.Lock()
	v := r.newValue(label)
	f := &fork{value: v, pins: 1, gone: true} // until the request has its reply
	r.forks[id] = f
	v.forks++
	r.mu.Unlock()
	c := r.localCore(v)
	c.created = future.New[agent.None]()
	sent := send(ctx, append(slices.Clip(opts), agent.WithHeader(forkHeader, appendFork(nil, r.self, id, label, label, 0))))
	_ = sent.OnDone(func(sent *agent.Future[uint64]) {
		err := sent.Err()
		if err != nil {
			err = &CreationError{c.text(), err}
			r.mu.Lock()
			if c.err = err; c.state == confirmed {
				c.state = failed
			}
			ready := v.ready
			r.mu.Unlock()
			if !ready {
				r.complete(v, nil, nil, err)
			}
			_ = c.created.Fail(err)
		} else {
			_ = c.created.Set(agent.None{})
		}
		r.unpin(id, f)
	})
	return c
}

// appendFork appends the data of forkHeader to dst: the incarnation of the owner, the fork with its
// label and that of the value, and the epoch of the sender's lease.
func appendFork(dst []byte, owner worker, id forkID, label, forkLabel Label, epoch uint64) []byte {
	dst = append(append(dst, owner.Incarnation[:]...), id[:]...)
	for _, l := range []Label{label, forkLabel} {
		dst = binary.AppendUvarint(dst, uint64(l.CreatedOn))
		dst = binary.AppendUvarint(dst, l.Local)
	}
	return binary.AppendUvarint(dst, epoch)
}

// parseFork returns the fork in data, the data of forkHeader, the label of the value, and the epoch of
// the sender's lease. The error matches ErrNoValue if the message was meant for another incarnation of
// this worker.
func (r *Refs) parseFork(data []byte) (id forkID, label Label, epoch uint64, err error) {
	wrong := fmt.Errorf("%w: the header %s has %d bytes", agent.ErrProtocol, forkHeader, len(data))
	var owner [16]byte
	if len(data) < len(owner)+len(id) {
		return id, label, 0, wrong
	}
	data = data[copy(owner[:], data):]
	data = data[copy(id[:], data):]
	var numbers [5]uint64
	for i := range numbers {
		v, n := binary.Uvarint(data)
		if n <= 0 || (i == 0 || i == 2) && v > 1<<31-1 {
			return id, label, 0, wrong
		}
		numbers[i], data = v, data[n:]
	}
	if len(data) > 0 {
		return id, label, 0, wrong
	}
	if owner != r.self.Incarnation {
		return id, label, 0, r.restarted()
	}
	return id, Label{int(numbers[0]), numbers[1]}, numbers[4], nil
}

// createHandler serves the creation of values by functions of one kind.
type createHandler struct {
	refs *Refs
	typ  string
}

// Open implements agent.Handler. The value exists, without being ready, from then on: messages that
// name the fork may follow. It is the result of the function, or fails with its error. If the
// function cannot be called, the value fails too.
func (h createHandler) Open(q *agent.Request) (agent.Task, error) {
	r := h.refs
	data, ok := q.Header(forkHeader)
	if !ok {
		return nil, fmt.Errorf("%w: no header %s", agent.ErrProtocol, forkHeader)
	}
	id, label, epoch, err := r.parseFork(data)
	if err != nil {
		return nil, err
	}
	var v *value
	t := &createTask{ctx: context.Background()}
	if v, epoch := r.created(q, id); v != nil {
		return &repeatedTask{r, v, epoch}, nil
	}
	t.Task, err = q.Delegate(h.typ, func(k *agent.Kept, err error) {
		var ptr any
		if err == nil {
			ptr, err = keptValue(h.typ, k)
		}
		r.complete(v, ptr, k, err)
		replyCreated(t.ctx, q, epoch, err)
	})
	if err != nil {
		return nil, err
	}
	v, epoch, err = r.register(q, id, label, epoch)
	return t, err
}

// createTask is a call of a function whose result is kept.
type createTask struct {
	agent.Task
	ctx context.Context // of Run, once that has begun
}

// Run implements agent.Task.
func (t *createTask) Run(ctx context.Context, q *agent.Request) {
	t.ctx = ctx
	t.Task.Run(ctx, q)
}

// replyCreated replies to a request with the context ctx that has created a value, under the lease of
// that epoch. err is the error of the function: it is that of the value, and the reference is
// confirmed, unless the function was ended by the end of the request.
func replyCreated(ctx context.Context, q *agent.Request, epoch uint64, err error) {
	if err != nil && ctx.Err() != nil {
		_ = q.Fail(err)
		return
	}
	_ = q.Reply(&epoch)
}

// created returns the value that an earlier attempt of the request q has created, with the fork of that
// id, and the epoch of the lease. It returns nil if there is none.
func (r *Refs) created(q *agent.Request, id forkID) (*value, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, h := r.forks[id], r.holders[q.Incarnation()]
	if f == nil || h == nil || f.holder != h || f.gone {
		return nil, 0
	}
	return f.value, h.epoch
}

// repeatedTask is a creation of which an earlier attempt runs, or has run, the function.
type repeatedTask struct {
	refs  *Refs
	value *value
	epoch uint64
}

// Run implements agent.Task. It replies once the value is ready. If the end of the earlier request has
// ended the function, it replies with that error.
func (t *repeatedTask) Run(ctx context.Context, q *agent.Request) {
	t.refs.whenReady(ctx, t.value, func() {
		if err := t.value.err; errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			_ = q.Fail(err)
			return
		}
		_ = q.Reply(&t.epoch)
	}, func() { _ = q.Fail(context.Cause(ctx)) })
}

// keptValue returns a pointer to the value of k, the result of a function of that kind.
func keptValue(typ string, k *agent.Kept) (any, error) {
	if typ == agent.TypeFunc {
		return k.Value, nil
	}
	return single(*k.Value.(*[]any))
}

// register adds the value that a request creates, with the fork of its caller, whose lease has the
// given epoch, or 0 if it knows none. It returns the value and the epoch of the lease. The error matches
// ErrFenced, ErrShared, agent.ErrProtocol or is that of addFork.
func (r *Refs) register(q *agent.Request, id forkID, label Label, epoch uint64) (*value, uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkLease(epoch); err != nil {
		return nil, 0, err
	}
	f := r.forks[id]
	if q.Incarnation() == r.self.Incarnation {
		if f == nil || f.holder != nil {
			return nil, 0, fmt.Errorf("%w: the creation on this worker has ended", ErrShared)
		}
		return f.value, 0, nil // createHere has added it
	}
	if f != nil {
		return nil, 0, fmt.Errorf("%w: the creation of a value that exists", agent.ErrProtocol)
	}
	v := r.newValue(label)
	v.locals = 0
	f, err := r.addFork(v, id, senderOf(q))
	if err != nil {
		delete(r.values, v)
		return nil, 0, err
	}
	return v, f.holder.epoch, nil
}
