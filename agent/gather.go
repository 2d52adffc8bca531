package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"
)

// AllGather gives each of some workers, of which this is one, the values of all, by
// name. Without workers it is among all of the group that are no clients. It returns when
// all of them have called it with the same set; the k-th call of one worker meets the
// k-th call of the others.
//
// It takes as long as a call may: to the end of ctx, or for the agent's default
// timeout. A worker that dies, leaves or gives up ends it for all. The error is an
// *Error whose Worker is that one, or the one that did not come. It matches
// ErrUnreachable, ErrRestarted, ErrCallerGone or ErrTimeout, or is an error of ctx.
func AllGather[T any](ctx context.Context, a *Agent, value T, workers ...To) (map[string]T, error) {
	values, err := gather(ctx, a, gathering{op: "all-gather", workers: workers}, value)
	if err != nil {
		return nil, err
	}
	all := make(map[string]T, len(values))
	for _, v := range values {
		all[v.name] = v.value
	}
	return all, nil
}

// Barrier returns when all of some workers, of which this is one, have called it; see
// AllGather, from which it counts apart.
func (a *Agent) Barrier(ctx context.Context, workers ...To) error {
	_, err := gather(ctx, a, gathering{op: "barrier", workers: workers}, None{})
	return err
}

// gathering is what workers do together.
type gathering struct {
	op      string // rounds of one do not meet those of another
	workers []To
	opts    []CallOption
}

// named is the value of one worker.
type named[T any] struct {
	name  string
	value T
}

// gather returns the values of all in the order of their ranks.
func gather[T any](ctx context.Context, a *Agent, g gathering, value T) ([]named[T], error) {
	fail := func(err error) ([]named[T], error) { return nil, a.gatherError(g.op, err) }
	members, err := a.circle(ctx, g.workers)
	if err != nil {
		return fail(err)
	}
	q := groupRequest{Op: g.op, Members: members}
	if q.Value, err = a.pack(&value); err != nil {
		return fail(marked(ErrArguments, err))
	}
	begun := time.Now()
	q.Seq = a.rounds.number(q.key())
	var answer groupReply
	t := target{to: To(members[0].Name), typ: groupType, opts: g.opts}
	if err := a.roundTrip(ctx, t, &answer, &q); err != nil {
		return fail(a.lateOnes(q.key(), members, begun, err))
	}
	if answer.Failure != nil {
		return fail(answer.Failure.err())
	}
	if len(answer.Values) != len(members) {
		return fail(fmt.Errorf("%w: values of %d workers, want %d", ErrProtocol, len(answer.Values), len(members)))
	}
	all := make([]named[T], len(members))
	for i, m := range members {
		all[i].name = m.Name
		if err := a.unpack(answer.Values[i], &all[i].value); err != nil {
			return fail(marked(ErrResult, err))
		}
	}
	return all, nil
}

// circle is who takes part, by rank.
func (a *Agent) circle(ctx context.Context, workers []To) ([]identity, error) {
	if a.isClosed() {
		return nil, ErrClosed
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	peers, err := a.chosen(ctx, workers)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(peers, a.own) {
		return nil, fmt.Errorf("%w: %s is not among the workers", ErrConfig, a.self)
	}
	slices.SortFunc(peers, func(x, y *peer) int { return x.info.Rank - y.info.Rank })
	peers = slices.Compact(peers)
	members := make([]identity, len(peers))
	for i, p := range peers {
		members[i] = p.identity()
	}
	return members, nil
}

func (a *Agent) chosen(ctx context.Context, workers []To) (peers []*peer, err error) {
	if len(workers) == 0 {
		err := a.refresh(ctx)
		return a.peers.workers(), err
	}
	for _, to := range workers {
		p, err := a.peer(ctx, to)
		if err != nil {
			return nil, err
		}
		peers = append(peers, p)
	}
	return peers, nil
}

// gatherError is err as an error of this operation.
func (a *Agent) gatherError(op string, err error) *Error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return &Error{Op: op, Worker: e.Worker, Err: e.Err}
	}
	return &Error{Op: op, Err: err}
}

// lateOnes is err with those who did not come, as far as that is known here.
func (a *Agent) lateOnes(key roundKey, members []identity, begun time.Time, err error) error {
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
	return &Error{Worker: missing[0], Err: fmt.Errorf("followers %v timed out in _all_gather after %.2f seconds: %w", missing, waited.Seconds(), err)}
}

// key is what the rounds of one set of workers are counted by, with the number of one.
func (q *groupRequest) key() roundKey {
	h := sha256.New()
	for _, m := range q.Members {
		fmt.Fprintf(h, "%q %d %x\n", m.Name, m.Rank, m.Incarnation)
	}
	k := roundKey{op: q.Op, seq: q.Seq}
	h.Sum(k.set[:0])
	return k
}
