package roster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
)

// JoinStatic joins a group of worldSize members, and returns a [Roster] once all of them have
// joined. self.Rank is the rank that the member shall have, from 0 to worldSize-1. self is copied.
// While JoinStatic waits it calls self.Waiting now and then. The [Roster] goes on using the store,
// which remains the caller's. The error is an [*Error].
//
// If members are in conflict over names, ranks, versions or the world size, or with a member that
// wants a dynamic group, all of them fail with the same error, also those that join later. Each may
// try again after it has got the error, under the same group name. Once the group is complete, a
// member that does not belong to it fails alone.
//
// A group that all members have left with Leave has ended, and its name is free for the next one,
// of any size. While some have not left, JoinStatic blocks for a member whose predecessor, the
// member of the same rank, has left. It does not wait for a member that died without leaving: the
// successor of a dead member gets ErrRejoin, and the group needs another name.
//
// When ctx ends the error names the missing ranks, and this member has withdrawn its claims if the
// store answered within a second.
func JoinStatic(ctx context.Context, s store.Store, group string, self Member, worldSize int) (*Roster, error) {
	j := newStaticJoin(s, group, self, worldSize)
	err := cmp.Or(checkGroup(group), self.check())
	var r *Roster
	switch {
	case err != nil:
	case worldSize < 1 || worldSize > maxWorld:
		err = fmt.Errorf("%w: %d, and 1 to %d are possible", ErrWorldSize, worldSize, maxWorld)
	case self.Rank < 0:
		err = fmt.Errorf("%w: rank %d in a static group", ErrMember, self.Rank)
	case self.Rank >= worldSize:
		err = fmt.Errorf("%w: rank %d in a group of %d", ErrWorldSize, self.Rank, worldSize)
	default:
		r, err = j.join(ctx)
	}
	if err != nil {
		return nil, &Error{"join", group, self.Name, err}
	}
	r.group = group
	return r, nil
}

// staticJoin is a member that joins a static group.
type staticJoin struct {
	*groupAccess
	self  Member
	world int

	claimedGen  uint64      // the generation in which it has claimed a rank; 0 for none
	predecessor *groupState // the complete group for whose end it waits
	report      waitReport
}

func newStaticJoin(s store.Store, group string, self Member, world int) *staticJoin {
	self = self.clone()
	self.Static = true
	j := &staticJoin{groupAccess: newGroupAccess(s, group, self.Incarnation), self: self, world: world}
	j.report.due = time.Now().Add(firstReport)
	j.onWait = j.reportWait
	return j
}

func (j *staticJoin) join(ctx context.Context) (*Roster, error) {
	for {
		g, err := j.readState(ctx)
		var r *Roster
		if err == nil {
			r, err = j.advance(ctx, g)
		}
		if err != nil {
			return nil, j.abort(ctx, err)
		}
		if r != nil {
			return r, nil
		}
	}
}

// advance performs the step of joining that the group's state g requires. It returns the roster
// once the group is complete. It returns neither a roster nor an error if the caller must read the
// state again and call advance with it. It may block while it waits for other members. The error is
// the conflict that made the join fail, or that of ctx or of the store.
func (j *staticJoin) advance(ctx context.Context, g *groupState) (*Roster, error) {
	switch {
	case g.available():
		return nil, j.begin(ctx, g)
	case g.phase == dynamic:
		return nil, failure{kind: mixedKinds}.err()
	case g.phase == failed:
		acked, err := j.learnFailure(ctx, g, rankAck(j.self.Rank))
		if err == nil && acked {
			err = j.begin(ctx, g)
		}
		return nil, err
	case g.phase == complete:
		return j.joinComplete(ctx, g)
	}
	return j.joinOpen(ctx, g)
}

// begin stores the first state of the group's next generation, which is open and follows that of g.
// If g has failed, begin also deletes the keys of its generation. If another member has changed the
// state first, begin changes nothing and returns nil. The error is that of the store or ctx.
func (j *staticJoin) begin(ctx context.Context, g *groupState) error {
	won, err := j.replaceState(ctx, g, g.nextGeneration(open, j.world))
	if won && g.phase == failed {
		j.sweep(ctx, g)
	}
	return err
}

// joinComplete handles a member that finds the complete group g. If the member of the same rank has
// left g, or g has no such rank and a member has left, joinComplete waits for the end of g and
// returns nil, nil. It also returns nil, nil if the state has changed since g was read. A member
// that is in the group already, because it could not withdraw an earlier attempt, gets the roster.
// Otherwise the error matches ErrWorldSize or ErrRejoin, and also ErrDuplicateRank if another
// worker has this member's rank; or it is that of ctx or of the store.
func (j *staticJoin) joinComplete(ctx context.Context, g *groupState) (*Roster, error) {
	waits, err := j.isEnding(ctx, g, j.self.Rank)
	switch {
	case err != nil:
		return nil, err
	case waits:
		j.predecessor = g
		err := j.awaitEnd(ctx, g)
		if err == nil {
			j.predecessor = nil
		}
		return nil, err
	case g.world != j.world:
		return nil, failure{kind: worldMismatch, name: j.self.Name, a: j.world, b: g.world}.err()
	}
	members, err := j.members(ctx, g)
	if members == nil || err != nil {
		return nil, err
	}
	old := members[j.self.Rank]
	if bytes.Equal(encodeEntry(old), encodeEntry(j.self)) {
		return newRoster(j.groupAccess, j.self, g, members), nil
	}
	const advice = "if it has died, form the group under another name"
	switch {
	case old.Incarnation == j.self.Incarnation:
		return nil, clashf(ErrRejoin, "worker %s with rank %d has joined already, with other URLs, versions or extra data", old.Name, old.Rank)
	case old.Name == j.self.Name:
		return nil, clashf(ErrRejoin, "worker %s with rank %d has joined as another incarnation, which has not left: %s", old.Name, old.Rank, advice)
	}
	same := &DuplicateRankError{Rank: old.Rank, Holder: old.Name, Other: j.self.Name}
	return nil, clashf(errtext.Join(ErrRejoin, same), "%v (%s has not left: %s)", same, old.Name, advice)
}

// abort withdraws the claims of a join that failed with cause, so that they do not conflict with a
// later attempt; claims in a generation that failed stay. It takes at most j.cleanupTimeout, even
// if ctx has ended. It returns cause; but if ctx has ended or cause matches
// context.DeadlineExceeded, it returns what withMissing makes of cause.
func (j *staticJoin) abort(ctx context.Context, cause error) error {
	over := ctx.Err() != nil || errors.Is(cause, context.DeadlineExceeded) // a store may report the timeout before the context does
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), j.cleanupTimeout)
	defer cancel()
	if over {
		cause = j.withMissing(ctx, cause)
	}
	// In a generation that failed the claims stay: they are the list of keys to sweep.
	if _, failed := errors.AsType[*clash](cause); j.claimedGen != 0 && !failed {
		j.withdraw(ctx)
	}
	return cause
}

// withMissing returns an error that wraps cause and names the ranks for which this member has
// waited: those that have not joined, or not left the previous group. If there are none, or the
// member has not waited for any, it returns cause itself. If the store cannot be read, the text has
// the reason that the ranks are unknown.
func (j *staticJoin) withMissing(ctx context.Context, cause error) error {
	missing, err := j.missing(ctx)
	if err != nil {
		return fmt.Errorf("%w: %w", err, cause)
	}
	if missing == "" {
		return cause
	}
	text := cause.Error()
	if e, ok := errors.AsType[*store.Error](cause); ok && errors.Is(e, store.ErrTimeout) {
		text = e.Err.Error() // without the operation on the store, which only waited
	}
	return errtext.New(fmt.Sprintf("%s: %s", missing, text), cause)
}

// missing returns a text that names the ranks for which this member waits: those that have not
// joined, or not left the previous group. It returns "" if there are none. If the store cannot be
// read, it returns an error with the text that the ranks are unknown, which wraps the error of the
// store.
func (j *staticJoin) missing(ctx context.Context) (string, error) {
	gen, world, verb, key := j.claimedGen, j.world, "joined", j.rankKey
	if j.predecessor != nil {
		gen, world, verb, key = j.predecessor.gen, j.predecessor.world, "left the previous group", j.leftKey
	}
	if gen == 0 {
		return "", nil
	}
	var ranks []int
	for r := range world {
		value, err := j.get(ctx, key(gen, r))
		if err != nil {
			return "", fmt.Errorf("the ranks that have not %s are unknown: %w", verb, err)
		}
		if value == nil {
			ranks = append(ranks, r)
		}
	}
	if len(ranks) == 0 {
		return "", nil
	}
	return fmt.Sprintf("%s not %s", describeRanks(ranks, world), verb), nil
}

// Times between reports of a member that waits. Each reads one key for each rank, so that large
// groups have fewer: reportPerRank for each rank, if that is longer.
const (
	firstReport   = time.Second
	nextReport    = 10 * time.Second
	reportPerRank = 40 * time.Millisecond
)

// waitReport holds the text with which self.Waiting was called last, and the time of the next call.
type waitReport struct {
	due  time.Time // of the next report
	last string
}

// reportWait calls j.self.Waiting with a text that names the ranks for which this member waits, if
// the time of the next report has come and the text has changed since the last one. It does nothing
// if j.self.Waiting is nil or the member waits for no rank. It ignores errors of the store.
func (j *staticJoin) reportWait(ctx context.Context) {
	if j.self.Waiting == nil || time.Now().Before(j.report.due) {
		return
	}
	missing, err := j.missing(ctx)
	j.report.due = time.Now().Add(max(nextReport, time.Duration(j.world)*reportPerRank))
	if err == nil && missing != "" && missing != j.report.last {
		j.report.last = missing
		j.self.Waiting(missing)
	}
}
