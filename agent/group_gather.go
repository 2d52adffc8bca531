package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/tensor"
)

// AllGather sends value to each of the given workers, which must include this one, and returns the
// values of all of them by the workers' names. If workers is empty, it takes all workers of the
// group except clients. It returns when all of them have called it with the same set of workers;
// the k-th call of one worker for a set meets the k-th call of the others. value is in use until
// AllGather returns; the returned values are decoded copies, also that of this worker.
//
// It ends with ctx, or after the agent's default timeout, which does not apply with the context of
// Extension.Drain. If a worker dies, leaves or cancels its
// call, AllGather fails for all workers. The error is an *Error. If the error is due to another
// worker, its field Worker names that worker, or a worker that has not called AllGather, and it
// matches ErrUnreachable, ErrRestarted, ErrCallerGone or ErrTimeout. Otherwise it wraps the reason,
// such as the cause of ctx, with ErrTimeout after its deadline, ErrConfig if this worker is not
// among workers, ErrNoWorker if one of them does not exist, ErrArguments or ErrResult if a value
// cannot be encoded or decoded, ErrRemoved, or ErrClosed.
func AllGather[T any](ctx context.Context, a *Agent, value T, workers ...To) (map[string]T, error) {
	g := groupOp{op: "all-gather", workers: workers}
	if ctx.Value(drainKey{}) != nil {
		g.opts = []CallOption{WithTimeout(0)}
	}
	values, err := gather(ctx, a, g, value)
	if err != nil {
		return nil, err
	}
	all := make(map[string]T, len(values))
	for _, v := range values {
		all[v.name] = v.value
	}
	return all, nil
}

// Barrier blocks until all of the given workers, which must include this one, have called it, and
// returns nil. If workers is empty, it takes all workers of the group except clients. The k-th
// Barrier of one worker meets the k-th Barrier of the others, not an AllGather. It ends with ctx,
// or after the agent's default timeout; the error is as that of AllGather.
func (a *Agent) Barrier(ctx context.Context, workers ...To) error {
	_, err := gather(ctx, a, groupOp{op: "barrier", workers: workers}, None{})
	return err
}

// groupOp is a collective operation.
type groupOp struct {
	op      string // rounds of different operations are independent
	workers []To
	opts    []CallOption
}

// memberValue is the contribution of one worker.
type memberValue[T any] struct {
	name  string
	value T
}

// gather performs one round of the collective operation g with value as the contribution of this
// worker. It returns the contributions of all workers of the round, ordered by rank. The error is
// an *Error, with the causes that AllGather lists.
func gather[T any](ctx context.Context, a *Agent, g groupOp, value T) ([]memberValue[T], error) {
	fail := func(err error) ([]memberValue[T], error) { return nil, a.opError(g.op, err) }
	members, err := a.participants(ctx, g.workers)
	if err != nil {
		return fail(err)
	}
	q := wire.GroupRequest{Op: g.op, Members: members}
	if q.Value, err = a.encodePacked(&value); err != nil {
		return fail(withKind(ErrArguments, err))
	}
	begun := time.Now()
	q.Seq = a.rounds.number(keyOf(&q))
	var answer wire.GroupReply
	t := target{to: To(members[0].Name), typ: wire.GroupType, opts: append(g.opts, WithBackground())}
	if err := a.roundTrip(ctx, t, &answer, &q); err != nil {
		return fail(a.withMissing(keyOf(&q), members, begun, err))
	}
	if answer.Failure != nil {
		return fail(groupError(answer.Failure))
	}
	if len(answer.Values) != len(members) {
		return fail(fmt.Errorf("%w: values of %d workers, want %d", ErrProtocol, len(answer.Values), len(members)))
	}
	all := make([]memberValue[T], len(members))
	for i, m := range members {
		all[i].name = m.Name
		if err := a.decodePacked(answer.Values[i], &all[i].value); err != nil {
			return fail(withKind(ErrResult, err))
		}
	}
	return all, nil
}

// MissingError is the error of a collective operation that timed out, at the worker that leads it.
type MissingError struct {
	Workers []string // the names of the workers that have not called it
	Waited  time.Duration
	Err     error // the timeout
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("no contribution of %s: %s", strings.Join(e.Workers, ", "), errorText(e.Err))
}

// Unwrap returns e.Err, the timeout.
func (e *MissingError) Unwrap() error { return e.Err }

// participants returns the members of a round, ordered by rank and without duplicates: those that
// workers address, or all members of the group except clients if workers is empty. It may read the
// members from the store. The error matches ErrConfig if this worker is not among them, ErrNoWorker
// if one does not exist, ErrRemoved if this worker is no member any more, ErrClosed if the agent is
// closed, or is that of ctx or of the store.
func (a *Agent) participants(ctx context.Context, workers []To) ([]wire.Identity, error) {
	if a.isClosed() {
		return nil, ErrClosed
	}
	if err := ctxerr.Cause(ctx); err != nil {
		return nil, err
	}
	var peers []*peer
	for _, to := range workers {
		p, err := a.peer(ctx, to)
		if err != nil {
			return nil, err
		}
		peers = append(peers, p)
	}
	if len(workers) == 0 {
		if err := a.refresh(ctx); err != nil {
			return nil, err
		}
		peers = a.peers.workers()
	}
	if !slices.Contains(peers, a.selfPeer) {
		return nil, fmt.Errorf("%w: %s is not among the workers", ErrConfig, a.self)
	}
	slices.SortFunc(peers, func(x, y *peer) int { return x.info.Rank - y.info.Rank })
	peers = slices.Compact(peers)
	members := make([]wire.Identity, len(peers))
	for i, p := range peers {
		members[i] = p.identity()
	}
	return members, nil
}

// opError returns a new *Error of the operation op that wraps err. If err itself contains an
// *Error, the new one has the Worker and the cause of the contained one instead. If err contains an
// *UnknownWorkerError, the Worker is the destination.
func (a *Agent) opError(op string, err error) *Error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return &Error{Op: op, Worker: e.Worker, Err: e.Err}
	}
	e := &Error{Op: op, Err: err}
	if unknown, ok := errors.AsType[*UnknownWorkerError](err); ok {
		e.Worker = string(unknown.destination())
	}
	return e
}

// withMissing adds to err, the error of a round, the members that have not contributed to the round
// with this key. It does so only if err is a timeout, this worker leads the round, and
// contributions are missing: it then returns an *Error with a *MissingError that wraps the timeout.
// Otherwise it returns err unchanged. begun is when the operation began.
func (a *Agent) withMissing(key roundKey, members []wire.Identity, begun time.Time, err error) error {
	if members[0] != a.identity() || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	missing := a.rounds.missing(key)
	if len(missing) == 0 {
		return err
	}
	waited := time.Since(begun)
	if timeout := (*TimeoutError)(nil); errors.As(err, &timeout) {
		waited = timeout.Limit
	}
	var e *Error
	if errors.As(err, &e) {
		err = e.Err
	}
	return &Error{Worker: missing[0], Err: &MissingError{missing, waited, err}}
}

// keyOf returns the key of the round to which the contribution q belongs: a hash of its members
// with their incarnations, the operation and the number.
func keyOf(q *wire.GroupRequest) roundKey {
	h := sha256.New()
	for _, m := range q.Members {
		fmt.Fprintf(h, "%q %d %x\n", m.Name, m.Rank, m.Incarnation)
	}
	k := roundKey{op: q.Op, seq: q.Seq}
	h.Sum(k.set[:0])
	return k
}

// groupFailure returns err, an error that the named worker has caused, in the form in which the
// leader of a round sends it to the members: with a code, the worker and the text of err.
func groupFailure(worker string, err error) *wire.GroupFailure {
	f := &wire.GroupFailure{Code: wire.GroupCanceled, Worker: worker, Text: err.Error()}
	switch {
	case errors.Is(err, ErrRestarted):
		f.Code = wire.GroupRestarted
	case errors.Is(err, ErrUnreachable), errors.Is(err, ErrNoWorker):
		f.Code = wire.GroupUnreachable
	case errors.Is(err, ErrTimeout):
		f.Code = wire.GroupTimeout
	}
	return f
}

// groupError returns the failure f, which the leader of a round sent, as an *Error whose Worker is
// the worker that caused the failure. It matches ErrRestarted, ErrUnreachable or ErrTimeout by the
// code of f, and otherwise ErrCallerGone. Its cause has the text of f, after that
// of the error that it matches, except for a timeout.
func groupError(f *wire.GroupFailure) error {
	kind := ErrCallerGone
	switch f.Code {
	case wire.GroupRestarted:
		kind = ErrRestarted
	case wire.GroupUnreachable:
		kind = ErrUnreachable
	case wire.GroupTimeout:
		return &Error{Worker: f.Worker, Err: errtext.New(f.Text, ctxerr.Wrap(context.DeadlineExceeded))}
	}
	return &Error{Worker: f.Worker, Err: errtext.New(prefixed(kind, f.Text), kind)}
}

// encodePacked encodes the value to which ptr points as bytes and tensors. The bytes are a copy.
// The tensors of the result share the memory of the value's tensors. The error is that of the codec
// or of a tensor.
func (a *Agent) encodePacked(ptr any) (wire.Packed, error) {
	e := a.outMessages.get()
	defer a.outMessages.put(e)
	e.encoder.Reset(nil)
	if err := e.encoder.Encode(ptr); err != nil {
		return wire.Packed{}, err
	}
	data, parts, err := e.encoder.Finish()
	if err != nil {
		return wire.Packed{}, err
	}
	p := wire.Packed{Data: bytes.Clone(data)}
	for _, part := range parts {
		t, err := tensor.FromBuffer(part.Buffer, tensor.U8, part.Buffer.Len())
		if err != nil {
			return wire.Packed{}, err
		}
		p.Tensors = append(p.Tensors, t)
	}
	return p, nil
}

// decodePacked decodes p, a result of encodePacked at a peer, to the variable to which ptr points.
// The tensors of the value share the storages of the tensors in p. The error matches ErrProtocol if
// p is not such a result, or is that of the codec.
func (a *Agent) decodePacked(p wire.Packed, ptr any) error {
	in := a.inMessages.pool.Get().(*inMessage)
	defer a.inMessages.put(in)
	if err := in.decoder.Reset(p.Data); err != nil {
		return err
	}
	in.storages = in.storages[:0]
	for _, t := range p.Tensors {
		if t == nil || t.DType() != tensor.U8 || t.Offset() != 0 || t.Storage().Len() != t.Len() {
			return fmt.Errorf("%w: not the bytes of a storage", ErrProtocol)
		}
		in.storages = append(in.storages, t.Storage())
	}
	if err := in.checkTensors(len(in.storages), func(i int) int { return in.storages[i].Len() }); err != nil {
		return err
	}
	if err := in.decoder.Supply(in.storages); err != nil {
		return err
	}
	return errtext.Join(in.decoder.Decode(ptr), in.decoder.Finish())
}
