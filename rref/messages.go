package rref

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// The types of the messages about references.
const (
	typeFetch  = "rref.fetch"
	typeCreate = "rref.create." // followed by the name of the kind of function
)

// CreatesValue reports whether requests of the type typ, see agent.Message.Type, have the callee keep a
// value, to which the caller gets a reference. A fetch of the value may be answered before them.
func CreatesValue(typ string) bool {
	return strings.HasPrefix(typ, typeCreate) || typ == typeCallRemote || typ == typeOpRemote
}

var (
	typeMessage   = agent.NewMessageType[target, string]("rref.type")
	forkMessage   = agent.NewMessageType[forkRequest, forkReply]("rref.fork")
	renewMessage  = agent.NewMessageType[leaseRequest, agent.None]("rref.renew")
	deleteMessage = agent.NewMessageType[forkList, agent.None]("rref.delete")
	acceptMessage = agent.NewMessageType[forkList, agent.None]("rref.accept")
	askMessage    = agent.NewMessageType[forkList, []bool]("rref.ask")
)

// target is the fork of the value that a message is about. Owner is the incarnation of the worker to
// which the message is sent, which may have another one by then. Epoch is that of the sender's lease,
// or 0 if it knows none yet.
type target struct {
	_     struct{} `tensorpipe:"rref.target"`
	Owner [16]byte
	ID    forkID
	Epoch uint64
}

func (c *core) fork() target {
	c.refs.mu.Lock()
	defer c.refs.mu.Unlock()
	return target{Owner: c.owner.Incarnation, ID: c.id, Epoch: c.epoch}
}

// leaseRequest is a heartbeat, which renews the lease with that epoch. Owner is as in target.
type leaseRequest struct {
	_     struct{} `tensorpipe:"rref.leaseRequest"`
	Owner [16]byte
	Epoch uint64
}

// forkList is the ids of forks. Owner is as in target.
type forkList struct {
	_     struct{} `tensorpipe:"rref.forkList"`
	Owner [16]byte
	IDs   []forkID
}

// forkRequest asks the owner for forks. Owner and Epoch are as in target.
type forkRequest struct {
	_     struct{} `tensorpipe:"rref.forkRequest"`
	Owner [16]byte
	Epoch uint64
	Forks []forkPair
}

// forkPair asks for the fork Child by Parent, one that the owner has granted under the lease with that
// epoch, or 0 if it is not known yet.
type forkPair struct {
	_             struct{} `tensorpipe:"rref.forkPair"`
	Child, Parent forkID
	Epoch         uint64
}

// forkReply has the epoch of the lease under which the owner has added the forks of a forkRequest, and
// for each of them why there is none, or a zero forkFailure.
type forkReply struct {
	_        struct{} `tensorpipe:"rref.forkReply"`
	Epoch    uint64
	Failures []forkFailure
}

// forkFailure is why the owner has not added a fork. Kind is the index in forkErrors of the error that
// the reason matches.
type forkFailure struct {
	_      struct{} `tensorpipe:"rref.forkFailure"`
	Kind   int
	Reason string
}

// forkErrors are the errors that the failure of a fork may match. All others become the first, also
// ErrFenced: it is the worker of the parent that was fenced, and not the one that asks.
var forkErrors = []error{ErrNoValue, ErrShared, agent.ErrOverloaded}

func newForkFailure(err error) forkFailure {
	kind := slices.IndexFunc(forkErrors, func(known error) bool { return errors.Is(err, known) })
	return forkFailure{Kind: max(kind, 0), Reason: err.Error()}
}

// err returns the failure, which must have a reason, as an error of the owner.
func (f forkFailure) err(owner string) error {
	known := ErrNoValue
	if f.Kind >= 0 && f.Kind < len(forkErrors) {
		known = forkErrors[f.Kind]
	}
	return &forkError{fmt.Sprintf("%s: %s", owner, f.Reason), known}
}

// forkError is the failure of a fork, whose text names the error that it matches already.
type forkError struct {
	text  string
	known error
}

func (e *forkError) Error() string { return e.text }
func (e *forkError) Unwrap() error { return e.known }

// handlers returns the handlers of the messages about references, by their types.
func (r *Refs) handlers() map[string]agent.Handler {
	all := map[string]agent.Handler{
		typeFetch:            opened[target](r.serveFetch),
		typeMessage.Type():   opened[target](r.serveType),
		forkMessage.Type():   opened[forkRequest](r.serveFork),
		deleteMessage.Type(): opened[forkList](r.serveDelete),
		acceptMessage.Type(): opened[forkList](r.serveAccept),
		askMessage.Type():    opened[forkList](r.serveAsk),
		renewMessage.Type():  opened[leaseRequest](r.serveRenew),
		typeCall:             callHandler{r, false, r.openMethod},
		typeCallRemote:       callHandler{r, true, r.openMethod},
		typeOp:               callHandler{r, false, r.openOperator},
		typeOpRemote:         callHandler{r, true, r.openOperator},
	}
	for name, typ := range functionKinds {
		all[typeCreate+name] = createHandler{r, typ}
	}
	return all
}

// opened is a handler of messages with one value of type A. It does not block, and replies at once or
// later.
type opened[A any] func(ctx context.Context, q *agent.Request, args A)

type openedTask[A any] struct {
	serve opened[A]
	args  A
}

// Short implements agent.ShortHandler.
func (opened[A]) Short() {}

// HostOnly implements agent.HostHandler.
func (opened[A]) HostOnly() {}

func (f opened[A]) Open(q *agent.Request) (agent.Task, error) {
	t := &openedTask[A]{serve: f}
	return t, q.Decode(&t.args)
}

func (t *openedTask[A]) Run(ctx context.Context, q *agent.Request) { t.serve(ctx, q, t.args) }

// withValue calls f once the value of the fork is ready, or with the error of the value. It replies
// with an error if the fork is not known.
func (r *Refs) withValue(ctx context.Context, q *agent.Request, t target, f func(*value)) {
	if !r.checkAddressed(q, t.Owner, t.Epoch) {
		return
	}
	r.find(ctx, t.ID, q.Incarnation(), func(v *value, err error) {
		if err != nil {
			_ = q.Fail(err)
			return
		}
		r.hold(v)
		r.whenReady(ctx, v, func() {
			if v.err != nil {
				_ = q.Fail(v.err)
			} else {
				f(v)
			}
			r.unhold(v)
		}, func() {
			_ = q.Fail(context.Cause(ctx))
			r.unhold(v)
		})
	})
}

func (r *Refs) serveFetch(ctx context.Context, q *agent.Request, t target) {
	r.withValue(ctx, q, t, func(v *value) { _ = q.Reply(v.ptr) }) // an error becomes the reply
}

func (r *Refs) serveType(ctx context.Context, q *agent.Request, t target) {
	r.withValue(ctx, q, t, func(v *value) { _ = q.Reply(&v.typ) })
}

// checkAddressed replies with an error, and returns false, if the message is not for this incarnation
// of the worker, or if it names the epoch of a lease that is over.
func (r *Refs) checkAddressed(q *agent.Request, to [16]byte, epoch uint64) bool {
	err := r.checkTarget(to, epoch)
	if err != nil {
		_ = q.Fail(err)
	}
	return err == nil
}

// checkTarget returns nil, or an error that matches ErrNoValue or ErrFenced, as checkAddressed.
func (r *Refs) checkTarget(to [16]byte, epoch uint64) error {
	if to != r.self.Incarnation {
		return r.restarted()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.checkLease(epoch)
}

// restarted returns the error for a message that is meant for an earlier incarnation of this worker.
func (r *Refs) restarted() error {
	return fmt.Errorf("%w: %s has restarted, and its values are gone", ErrNoValue, r.self.Name)
}

// serveFork adds a fork for each pair of which the parent is known, or becomes known within a lease,
// and replies.
func (r *Refs) serveFork(ctx context.Context, q *agent.Request, args forkRequest) {
	if !r.checkAddressed(q, args.Owner, args.Epoch) {
		return
	}
	var mu sync.Mutex
	reply, remaining := forkReply{Failures: make([]forkFailure, len(args.Forks))}, len(args.Forks)
	for i, pair := range args.Forks {
		r.addForkByParent(ctx, pair, senderOf(q), func(f *fork, err error) {
			mu.Lock()
			if err != nil {
				reply.Failures[i] = newForkFailure(err)
			} else {
				reply.Epoch = max(reply.Epoch, f.holder.epoch)
			}
			remaining--
			last := remaining == 0
			mu.Unlock()
			if last {
				_ = q.Reply(&reply)
			}
		})
	}
	if len(args.Forks) == 0 {
		_ = q.Reply(&reply)
	}
}

// addForkByParent adds a fork of the worker w, once its parent is known, and calls added with it, or
// with an error that matches ErrFenced or is that of find or addFork.
func (r *Refs) addForkByParent(ctx context.Context, pair forkPair, w worker, added func(*fork, error)) {
	r.mu.Lock()
	err := r.checkLease(pair.Epoch)
	r.mu.Unlock()
	if err != nil {
		added(nil, err)
		return
	}
	r.find(ctx, pair.Parent, w.Incarnation, func(v *value, err error) {
		if err != nil {
			added(nil, err)
			return
		}
		var f *fork
		r.mu.Lock()
		if err = r.checkLease(pair.Epoch); err == nil { // the parent's worker may have been fenced meanwhile
			f, err = r.addFork(v, pair.Child, w)
		}
		r.mu.Unlock()
		added(f, err)
	})
}

func senderOf(q *agent.Request) worker {
	from := q.From()
	return worker{Name: from.Name, Rank: from.Rank, Incarnation: q.Incarnation()}
}

func (r *Refs) serveDelete(_ context.Context, q *agent.Request, args forkList) {
	if !r.checkAddressed(q, args.Owner, 0) {
		return
	}
	for ids := range slices.Chunk(args.IDs, maxDeletes) {
		var all []*value
		r.mu.Lock()
		for _, id := range ids {
			if r.forks[id] == nil { // its creation may still come
				r.refused.add(id, r.options.Lease)
			}
			if v := r.deleteFork(id, q.Incarnation()); v != nil {
				all = append(all, v)
			}
		}
		r.mu.Unlock()
		dropAll(all)
	}
	_ = q.Reply(&agent.None{})
}

func (r *Refs) serveAccept(_ context.Context, q *agent.Request, args forkList) {
	if !r.checkAddressed(q, args.Owner, 0) {
		return
	}
	for _, id := range args.IDs {
		r.mu.Lock()
		ch := r.children[id]
		r.mu.Unlock()
		if ch != nil && ch.to.Incarnation == q.Incarnation() {
			r.accepted(id)
		}
	}
	_ = q.Reply(&agent.None{})
}

// serveAsk replies which of the references this worker has, once it is known whether their owners
// have confirmed them. It refuses the others from now on.
func (r *Refs) serveAsk(ctx context.Context, q *agent.Request, args forkList) {
	if !r.checkAddressed(q, args.Owner, 0) {
		return
	}
	has := make([]bool, len(args.IDs))
	var waiting []*core
	r.mu.Lock()
	for i, id := range args.IDs {
		if c := cmp.Or(r.cores[id], r.arriving[id]); c != nil {
			has[i] = true
			waiting = append(waiting, c)
		} else {
			r.refused.add(id, r.options.Lease)
		}
	}
	r.mu.Unlock()
	if len(waiting) == 0 {
		_ = q.Reply(&has)
		return
	}
	started := r.spawn(func() {
		for _, c := range waiting {
			_, _ = c.creation().Wait(ctx) // settled either way
		}
		_ = q.Reply(&has)
	})
	if !started {
		_ = q.Fail(ErrClosed)
	}
}

// single returns a pointer to the only value in results, with its own type.
func single(results []any) (any, error) {
	if len(results) != 1 {
		return nil, fmt.Errorf("%w: the function has %d results, and a reference is to one", ErrType, len(results))
	}
	if results[0] == nil {
		return &results[0], nil
	}
	p := reflect.New(reflect.TypeOf(results[0]))
	p.Elem().Set(reflect.ValueOf(results[0]))
	return p.Interface(), nil
}
