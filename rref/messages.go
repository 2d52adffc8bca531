package rref

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// The types of the messages about references.
const (
	typeFetch  = "rref.fetch"
	typeCreate = "rref.create." // followed by the name of the kind of function
)

var (
	typeMessage   = agent.NewMessageType[target, string]("rref.type")
	forkMessage   = agent.NewMessageType[forkRequest, []string]("rref.fork")
	deleteMessage = agent.NewMessageType[forkList, agent.None]("rref.delete")
	acceptMessage = agent.NewMessageType[forkList, agent.None]("rref.accept")
	askMessage    = agent.NewMessageType[forkList, []bool]("rref.ask")
)

// target is the fork of the value that a message is about. Owner is the incarnation of the worker to
// which the message is sent, which may have another one by then.
type target struct {
	_     struct{} `tensorpipe:"rref.target"`
	Owner [16]byte
	ID    forkID
}

func (c *core) fork() target { return target{Owner: c.owner.Incarnation, ID: c.id} }

// forkList is the ids of forks. Owner is as in target.
type forkList struct {
	_     struct{} `tensorpipe:"rref.forkList"`
	Owner [16]byte
	IDs   []forkID
}

// forkRequest asks the owner for forks, each by one that the owner knows.
type forkRequest struct {
	_     struct{} `tensorpipe:"rref.forkRequest"`
	Owner [16]byte
	Forks []forkPair
}

type forkPair struct {
	_             struct{} `tensorpipe:"rref.forkPair"`
	Child, Parent forkID
}

// handlers returns the handlers of the messages about references, by their types.
func (r *Refs) handlers() map[string]agent.Handler {
	all := map[string]agent.Handler{
		typeFetch:            opened[target](r.serveFetch),
		typeMessage.Type():   opened[target](r.serveType),
		forkMessage.Type():   opened[forkRequest](r.serveFork),
		deleteMessage.Type(): opened[forkList](r.serveDelete),
		acceptMessage.Type(): opened[forkList](r.serveAccept),
		askMessage.Type():    opened[forkList](r.serveAsk),
		typeCall:             callHandler{r, false},
		typeCallRemote:       callHandler{r, true},
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

func (f opened[A]) Open(q *agent.Request) (agent.Task, error) {
	t := &openedTask[A]{serve: f}
	return t, q.Decode(&t.args)
}

func (t *openedTask[A]) Run(ctx context.Context, q *agent.Request) { t.serve(ctx, q, t.args) }

// withValue calls f once the value of the fork is ready, or with the error of the value. It replies
// with an error if the fork is not known.
func (r *Refs) withValue(ctx context.Context, q *agent.Request, t target, f func(*value)) {
	if !r.checkAddressed(q, t.Owner) {
		return
	}
	r.find(ctx, t.ID, func(v *value, err error) {
		if err != nil {
			_ = q.Fail(err)
			return
		}
		r.whenReady(v, func() {
			if v.err != nil {
				_ = q.Fail(v.err)
				return
			}
			f(v)
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
// of the worker.
func (r *Refs) checkAddressed(q *agent.Request, to [16]byte) bool {
	if to == r.self.Incarnation {
		return true
	}
	_ = q.Fail(r.restarted())
	return false
}

// restarted returns the error for a message that is meant for an earlier incarnation of this worker.
func (r *Refs) restarted() error {
	return fmt.Errorf("%w: %s has restarted, and its values are gone", ErrNoValue, r.self.Name)
}

// serveFork adds a fork for each pair of which the parent is known, or becomes known within a lease,
// and replies with the reasons for which there is none, "" for those that were added.
func (r *Refs) serveFork(ctx context.Context, q *agent.Request, args forkRequest) {
	if !r.checkAddressed(q, args.Owner) {
		return
	}
	failures := make([]string, len(args.Forks))
	var remaining atomic.Int64
	remaining.Store(int64(len(args.Forks)))
	for i, pair := range args.Forks {
		r.find(ctx, pair.Parent, func(v *value, err error) {
			if err == nil {
				r.mu.Lock()
				if _, kept := r.values[v]; !kept {
					err = ErrNoValue
				} else {
					_, err = r.addFork(v, pair.Child, q.From(), q.Incarnation())
				}
				r.mu.Unlock()
			}
			if err != nil {
				failures[i] = err.Error()
			}
			if remaining.Add(-1) == 0 {
				_ = q.Reply(&failures)
			}
		})
	}
	if len(args.Forks) == 0 {
		_ = q.Reply(&failures)
	}
}

func (r *Refs) serveDelete(_ context.Context, q *agent.Request, args forkList) {
	if !r.checkAddressed(q, args.Owner) {
		return
	}
	var all []*value
	r.mu.Lock()
	for _, id := range args.IDs {
		if r.forks[id] == nil { // its creation may still come
			r.refuse(id)
		}
		if v := r.deleteFork(id, q.Incarnation()); v != nil {
			all = append(all, v)
		}
	}
	r.mu.Unlock()
	for _, v := range all {
		v.drop()
	}
	_ = q.Reply(&agent.None{})
}

// refuse makes this worker refuse a fork that has not arrived, for some leases. The caller holds
// r.mu.
func (r *Refs) refuse(id forkID) {
	now := time.Now()
	for old, until := range r.refused {
		if now.After(until) {
			delete(r.refused, old)
		}
		break // one each time, in random order: the table does not grow without bound
	}
	r.refused[id] = now.Add(4 * r.options.Lease)
}

func (r *Refs) serveAccept(_ context.Context, q *agent.Request, args forkList) {
	if !r.checkAddressed(q, args.Owner) {
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
	if !r.checkAddressed(q, args.Owner) {
		return
	}
	has := make([]bool, len(args.IDs))
	var waiting []*core
	r.mu.Lock()
	for i, id := range args.IDs {
		if c := r.cores[id]; c != nil {
			has[i] = true
			waiting = append(waiting, c)
		} else {
			r.refuse(id)
		}
	}
	r.mu.Unlock()
	if len(waiting) == 0 {
		_ = q.Reply(&has)
		return
	}
	started := r.spawn(func() {
		for _, c := range waiting {
			_, _ = c.created.Wait(ctx) // settled either way
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
