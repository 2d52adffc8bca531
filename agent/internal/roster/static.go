package roster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// JoinStatic joins a group of worldSize members, and returns once all of them have joined.
// self.Rank is the rank that the member shall have. The [Roster] goes on using the store, which
// remains the caller's. The error is an [*Error].
//
// If members are in conflict over names, ranks, versions or the world size, or with a member that
// wants a dynamic group, all of them fail with the same error, also those that join later. Each
// may try again after it has got the error, under the same group name. Once the group is
// complete, a member that does not belong to it fails alone.
//
// A group that all members have left with Leave has ended, and its name is free for the next one,
// of any size. While some have not left, JoinStatic blocks for a member whose predecessor, the
// member of the same rank, has left. It does not wait for a member that died without leaving: the
// successor of a dead member gets ErrRejoin, and the group needs another name.
//
// When ctx ends the error names the missing ranks, and this member has withdrawn its claims if
// the store answered within a second.
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
}

func newStaticJoin(s store.Store, group string, self Member, world int) *staticJoin {
	self = self.clone()
	self.Static = true
	return &staticJoin{groupAccess: newGroupAccess(s, group, self.Incarnation), self: self, world: world}
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

// advance performs the step of joining that the state g of the group requires. It returns the
// roster once the group is complete. It returns neither a roster nor an error if the caller must
// read the state again and call advance with it.
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

// begin opens the next generation after g. It is no error, and nothing changes, if another member
// has changed the state first.
func (j *staticJoin) begin(ctx context.Context, g *groupState) error {
	won, err := j.replaceState(ctx, g, g.nextGeneration(open, j.world))
	if won && g.phase == failed {
		j.sweep(ctx, g)
	}
	return err
}

// joinComplete handles the complete group g. If the member of this rank has left, or the group has
// no such rank and members are leaving, it waits for the end and returns nil twice. It also
// returns nil twice if the state has changed since g was read. A member that is in the group
// already, because it could not withdraw an earlier attempt, gets the roster. Otherwise the error
// matches ErrWorldSize or ErrRejoin, and also ErrDuplicateRank if another worker has this member's
// rank.
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
	return nil, clashf(errors.Join(ErrRejoin, same), "%v (%s has not left: %s)", same, old.Name, advice)
}

// abort withdraws the claims of a join that failed with cause, so that they do not conflict with a
// later attempt. It takes at most cleanupTimeout, and works even if ctx has ended. It returns
// cause, with the missing ranks if ctx has ended.
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

// withMissing returns cause with a text that names the ranks for which this member has waited:
// those that have not joined, or not left the previous group. It returns cause itself if there
// are none.
func (j *staticJoin) withMissing(ctx context.Context, cause error) error {
	gen, world, verb, key := j.claimedGen, j.world, "joined", j.rankKey
	if j.predecessor != nil {
		gen, world, verb, key = j.predecessor.gen, j.predecessor.world, "left the previous group", j.leftKey
	}
	if gen == 0 {
		return cause
	}
	var ranks []int
	for r := range world {
		value, err := j.get(ctx, key(gen, r))
		if err != nil {
			return fmt.Errorf("the ranks that have not %s are unknown: %w", verb, cause)
		}
		if value == nil {
			ranks = append(ranks, r)
		}
	}
	if len(ranks) == 0 {
		return cause
	}
	return fmt.Errorf("%s not %s: %w", describeRanks(ranks, world), verb, cause)
}
