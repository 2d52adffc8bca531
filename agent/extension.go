package agent

import (
	"context"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// Extension is a subsystem that is built on an agent and shares its life, such as remote
// references. An extension serves one agent. Its methods are called one after the other, in this
// order: Configure, Start, Drain if the agent is shut down, and Close. Dump and Metrics may be
// called between Start and Close, concurrently.
type Extension interface {
	// Key returns the value by which Agent.Extension finds the extension. It must be comparable
	// and not nil, and different for each extension of an agent.
	Key() any

	// Configure adds to c what the extension needs: functions, handlers, interceptors, types. Join
	// calls it for the extensions in their order, before it opens anything. c has its defaults, and
	// is a copy whose Funcs, Handlers, Interceptors and Operators may be changed; the Registry is
	// that of the application. If Configure fails, Join fails with the same error.
	Configure(c *Config) error

	// Start is called, for the extensions in their order, when the worker has joined its group and
	// before it handles the first message. It must not block, and must not make calls. If Start
	// fails, Join closes all extensions that were started, and fails with the same error.
	Start(a *Agent) error

	// Drain is called by Shutdown, for the extensions in the opposite order, when this worker has
	// no pending calls and runs no handlers; in a static group, when this holds for all workers.
	// Messages are still sent and received, so Drain may make calls, even to workers whose
	// extensions drain at the same time. Workers that still have other calls are not disturbed by
	// calls with WithBackground. The error is that of Shutdown, which continues after an error.
	Drain(ctx context.Context) error

	// Close is called for each extension that was started, in the opposite order, also if there was
	// no Shutdown. All pipes are closed then, so that calls fail. Close waits for the goroutines of
	// the extension, and for no function of the application. The error is that of Agent.Close.
	Close() error

	// Dump writes the state of the extension to w as text, for Agent.Dump.
	Dump(w io.Writer) error

	// Metrics returns the numbers of the extension by name, in a new map, for Agent.Extensions.
	Metrics() map[string]int64
}

// Extension returns the extension of Config.Extensions with that key, nil if there is none.
func (a *Agent) Extension(key any) Extension {
	for _, e := range a.extensions {
		if e.Key() == key {
			return e
		}
	}
	return nil
}

// Extensions returns the extensions of the agent in their order, in a new slice.
func (a *Agent) Extensions() []Extension { return slices.Clone(a.extensions) }

// configureExtensions calls Configure of the extensions in c. It replaces the slices and the map
// that they may change by copies. The error matches ErrConfig for an extension that is nil, or whose
// key is nil, cannot be compared or belongs to an earlier one; or it is that of Configure.
func (c *Config) configureExtensions() error {
	if len(c.Extensions) == 0 {
		return nil
	}
	c.Funcs, c.Interceptors = slices.Clone(c.Funcs), slices.Clone(c.Interceptors)
	if c.Handlers = maps.Clone(c.Handlers); c.Handlers == nil {
		c.Handlers = map[string]Handler{}
	}
	keys := map[any]bool{}
	for _, e := range slices.Clone(c.Extensions) {
		if e == nil {
			return fmt.Errorf("%w: an extension is nil", ErrConfig)
		}
		key := e.Key()
		if key == nil || !reflect.ValueOf(key).Comparable() {
			return fmt.Errorf("%w: the key of the extension %T is %v, which cannot be compared", ErrConfig, e, key)
		}
		if keys[key] {
			return fmt.Errorf("%w: two extensions have the key %v", ErrConfig, key)
		}
		keys[key] = true
		if err := e.Configure(c); err != nil {
			return fmt.Errorf("extension %T: %w", e, err)
		}
	}
	return nil
}

// startExtensions calls Start of the extensions, until one fails. The error is that of Start.
func (a *Agent) startExtensions(all []Extension) error {
	for _, e := range all {
		a.extensions = append(a.extensions, e) // Start may look for itself
		if err := e.Start(a); err != nil {
			a.extensions = a.extensions[:len(a.extensions)-1]
			return fmt.Errorf("extension %T: %w", e, err)
		}
	}
	return nil
}

// drainKey is the key of the context of Extension.Drain. A worker may reach a round of AllGather much
// later than the others there.
type drainKey struct{}

// drainExtensions calls Drain of all extensions, the last one first, and returns their errors
// joined.
func (a *Agent) drainExtensions(ctx context.Context) (err error) {
	ctx = context.WithValue(ctx, drainKey{}, true)
	for _, e := range slices.Backward(a.extensions) {
		err = errtext.Join(err, e.Drain(ctx))
	}
	return err
}

// closeExtensions calls Close of all extensions that were started, the last one first, and returns
// their errors joined.
func (a *Agent) closeExtensions() (err error) {
	for _, e := range slices.Backward(a.extensions) {
		err = errtext.Join(err, e.Close())
	}
	return err
}

// The types of requests that Request.Delegate accepts, see Request.Type.
const (
	TypeFunc   = ""         // the call of a Func
	TypeInvoke = invokeType // the call of a function by Agent.Invoke
	TypeOp     = opType     // the call of an operator by Agent.Op
)

// Kept is a result that stays after its request, see Request.Keep: for example that of a function that has run on behalf
// of a handler, see Request.Delegate.
type Kept struct {
	// Value points to the result. That of Delegate is in memory of its own: a *R for a Func[A, R], a
	// *[]any with all results for TypeInvoke and TypeOp.
	Value any

	borrowed []*tensor.Storage
	ordered  *Future[None] // done, after the work that computes the tensors of the result; nil without such work
}

// Order makes the streams of ctx wait for the work that computes the tensors of the result, as far as they are found. The
// host does not wait. The error is a *future.StreamError.
func (k *Kept) Order(ctx context.Context) error {
	if k.ordered == nil {
		return nil
	}
	_, err := k.ordered.Wait(ctx)
	return err
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
// result. If the request is rejected before the function runs, but after Open has returned the task,
// done is called with the error. It is not called if Open returns an error.
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
	if t, ok := task.(ShortTask); ok && t.Short() {
		r.handler.short = true // the task that Open returns may hide it
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
	k, err := r.Keep(result.Interface())
	if err != nil {
		d.done(nil, err)
		return true
	}
	k.borrowed, r.borrowed = r.borrowed, nil
	d.done(k, nil)
	return true
}

// Keep returns the result of a Task, to which ptr points, for use after the request: its tensors become valid after the
// present work of the request's streams. The error is that of a stream, or a *PanicError if a custom encoding panics.
func (r *Request) Keep(ptr any) (*Kept, error) {
	ordered, err := r.orderKept(ptr)
	if err != nil {
		return nil, err
	}
	return &Kept{Value: ptr, ordered: ordered}, nil
}

// resultType returns the type by which the result of the function that serves the request is
// encoded: that of the request, or the one to which it was delegated.
func (r *Request) resultType() string {
	if d := r.delegate.Load(); d != nil {
		return d.typ
	}
	return r.handler.typ
}

// MessageOutcome is the way in which a message has ended, see Message.OnEnd.
type MessageOutcome byte

// The outcomes of messages.
const (
	// MessageUnsent, of a message to be sent: no byte of it was sent, because it could not be
	// encoded, the call was cancelled before, or there is no pipe.
	MessageUnsent MessageOutcome = 1 + iota

	// MessageUncertain, of a message that was sent: it may have arrived or not. A request has no
	// reply, because the call was cancelled, ran into its limit, or lost its pipe. A reply was
	// given to a pipe that broke.
	MessageUncertain

	// MessageAnswered, of a request that was sent: its reply or failure has arrived, and was
	// decoded unless the call has failed for another reason.
	MessageAnswered

	// MessageSent, of a reply or failure that was sent: the pipe has taken it over, and the agent
	// has forgotten it. A reply that is kept for repeated requests, see WithOnce, ends only when it
	// is evicted, or when the caller has left the group.
	MessageSent

	// MessageHandled, of a message that was received: a request has its reply, a reply was decoded.
	// If the message could not be decoded, MessageEnd.Err has the reason.
	MessageHandled
)

// String returns the name of the outcome, such as "uncertain".
func (o MessageOutcome) String() string {
	names := [...]string{"", "unsent", "uncertain", "answered", "sent", "handled"}
	if o > 0 && int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("outcome %d", byte(o))
}

// MessageEnd is the end of a message. Err is the error of the call, or the error of encoding,
// sending or decoding the message. It is nil if there is none.
type MessageEnd struct {
	Outcome MessageOutcome
	Err     error
}

// OnEnd makes f run once, when the message has ended: for a request that is sent, when its call
// has ended. Interceptors and the encodings of values may call OnEnd while the message is encoded or
// decoded, also for a message whose encoding or decoding then fails. The attempts of a call
// WithRetry are different messages, and a reply that is sent again is not a new one. If several
// functions were added, they run in the order in which they were added. They run on any goroutine,
// before the call returns or its future is done, and must not block. For a message that a
// Config.FaultHook sees, OnEnd does nothing.
func (m *Message) OnEnd(f func(MessageEnd)) {
	if m.ends != nil {
		m.ends.add(f)
	}
}

// messageEnds is the functions that run when a message ends. Most messages have at most one.
type messageEnds struct {
	first func(MessageEnd)
	more  []func(MessageEnd)
}

func (e *messageEnds) add(f func(MessageEnd)) {
	if e.first == nil {
		e.first = f
	} else {
		e.more = append(e.more, f)
	}
}

// run runs the functions, once, and forgets them. It may be called again.
func (e *messageEnds) run(outcome MessageOutcome, err error) {
	all := e.take()
	if all.first == nil {
		return
	}
	all.first(MessageEnd{outcome, err})
	for _, f := range all.more {
		f(MessageEnd{outcome, err})
	}
}

// take returns the functions, which no longer belong to e.
func (e *messageEnds) take() messageEnds {
	all := *e
	*e = messageEnds{}
	return all
}

// IsKept reports whether the message is a reply that may be kept and sent again, see WithOnce: what
// it brings may arrive several times, until it has ended.
func (m *Message) IsKept() bool { return m.kept }

// CallKey identifies one call at one of its ends, as long as the agent is open: the request and its
// reply have the same key. It can be compared, and used as the key of a map.
type CallKey struct {
	conn   *conn
	number uint64
	served bool
}

// String returns the key in the form of Agent.Dump, such as "call #3 to worker1".
func (k CallKey) String() string {
	switch {
	case k.conn == nil:
		return "no call"
	case k.served:
		return fmt.Sprintf("request #%d of %s", k.number, k.conn.peer.Name)
	}
	return fmt.Sprintf("call #%d to %s", k.number, k.conn.peer.Name)
}

// Agent returns the agent that sends or has received the message.
func (m *Message) Agent() *Agent { return m.key.conn.agent }

// Call returns the key of the call to which the message belongs.
func (m *Message) Call() CallKey { return m.key }

// Incarnation returns the incarnation of the worker at the other end.
func (m *Message) Incarnation() Incarnation { return Incarnation(m.key.conn.owner.member.Incarnation) }
