package roster

import (
	"bytes"
	"context"
)

// joinOpen claims this member's rank and name in the open state g of the group, blocks until that
// generation is no longer open, and returns the roster if it is complete then. A conflict makes the
// generation fail for all members, with the conflict as the error. joinOpen returns neither a
// roster nor an error if the caller must read the state again. The error may also be that of ctx or
// of the store.
func (j *staticJoin) joinOpen(ctx context.Context, g *groupState) (*Roster, error) {
	if g.world != j.world {
		return nil, j.failWith(ctx, g, failure{kind: worldMismatch, name: j.self.Name, a: j.world, b: g.world})
	}
	j.claimedGen = g.gen
	f, err := j.claimRank(ctx, g.gen)
	if f == nil && err == nil {
		f, err = j.claimName(ctx, g.gen)
	}
	if err != nil {
		return nil, err
	}
	if f != nil {
		return nil, j.failWith(ctx, g, *f)
	}
	return j.awaitDecision(ctx, g.gen)
}

func (j *staticJoin) failWith(ctx context.Context, g *groupState, f failure) error {
	return j.failGroup(ctx, g, f, rankAck(j.self.Rank))
}

// claimRank writes to the store that this member claims its rank in the generation gen. It returns
// nil, nil if it succeeded, which includes replacing a claim of an earlier attempt of the same
// incarnation. It returns the conflict and nil if another member or incarnation has claimed the
// rank. The error is that of the store or ctx, or matches ErrCorrupt or ErrVersion.
func (j *staticJoin) claimRank(ctx context.Context, gen uint64) (*failure, error) {
	key, mine := j.rankKey(gen, j.self.Rank), encodeEntry(j.self)
	for expected := []byte(nil); ; {
		now, err := j.compareAndSwap(ctx, key, expected, mine)
		if err != nil || bytes.Equal(now, mine) {
			return nil, err
		}
		expected = now
		if len(now) == 0 {
			continue
		}
		other, err := decodeEntry(now, j.self.Rank)
		switch {
		case err != nil:
			return nil, err
		case other.Incarnation == j.self.Incarnation:
			// A claim of an earlier attempt that could not be withdrawn: replace it.
		case other.Name == j.self.Name:
			return &failure{kind: joinedTwice, name: other.Name, a: other.Rank}, nil
		default:
			return &failure{kind: sameRank, name: other.Name, other: j.self.Name, a: other.Rank}, nil
		}
	}
}

// claimName writes to the store that this member claims its name in the generation gen, so that a
// duplicate is found before all members have joined. It returns nil, nil if it succeeded, or the
// conflict and nil if another member has the name. The error is that of the store or ctx, or
// matches ErrCorrupt or ErrVersion.
//
// The rank must have been claimed before: a claim of a name holds only while the same member claims
// its rank. Otherwise that member has withdrawn or died, and its claim is replaced.
func (j *staticJoin) claimName(ctx context.Context, gen uint64) (*failure, error) {
	key, mine := j.nameKey(gen, j.self.Name), claim{j.self.Rank, j.self.Incarnation}.encode()
	for expected := []byte(nil); ; {
		now, err := j.compareAndSwap(ctx, key, expected, mine)
		if err != nil || bytes.Equal(now, mine) {
			return nil, err
		}
		expected = now
		if len(now) == 0 {
			continue
		}
		other, err := decodeClaim(now)
		if err != nil {
			return nil, err
		}
		if other.rank == j.self.Rank {
			continue
		}
		// The claim holds if the same member still claims its rank.
		value, err := j.get(ctx, j.rankKey(gen, other.rank))
		if err != nil {
			return nil, err
		}
		if value == nil {
			continue
		}
		holder, err := decodeEntry(value, other.rank)
		if err != nil {
			return nil, err
		}
		if holder.Incarnation == other.id {
			return &failure{kind: sameName, name: j.self.Name, a: min(other.rank, j.self.Rank), b: max(other.rank, j.self.Rank)}, nil
		}
	}
}

// awaitDecision blocks until the group's generation gen, in which this member has its claims, is no
// longer open. It returns the roster if the generation is complete with this member, and the
// conflict as the error if it has failed. It calls j.onWait before each wait. If it finds all ranks
// claimed, it completes the generation itself, or fails it if there is a conflict. It returns nil,
// nil if the member must begin again. The error may also be that of ctx or of the store.
func (j *staticJoin) awaitDecision(ctx context.Context, gen uint64) (*Roster, error) {
	decided := newNotification(j.keySpace, j.decidedKey(gen))
	for {
		g, err := j.readState(ctx)
		if err != nil {
			return nil, err
		}
		if !g.is(open, gen) {
			return j.outcome(ctx, g, gen)
		}
		members := make([]Member, j.world)
		all, err := j.forEachRank(ctx, j.world, func(rank int) string { return j.rankKey(gen, rank) }, func(rank int, value []byte) (err error) {
			members[rank], err = decodeEntry(value, rank)
			return err
		})
		if err != nil {
			return nil, err
		}
		if !all {
			j.onWait(ctx)
			err = decided.wait(ctx)
		} else if f := findConflict(members); f != nil {
			return nil, j.failWith(ctx, g, *f)
		} else {
			err = j.completeGroup(ctx, g, members)
		}
		if err != nil {
			return nil, err
		}
	}
}

// completeGroup writes the member list to the store, changes the open state g to complete, and
// notifies the members that wait. If the state has changed since g was read, it deletes the list
// again, changes nothing else, and returns nil. The error is that of the store or ctx.
func (j *staticJoin) completeGroup(ctx context.Context, g *groupState, members []Member) error {
	list := j.listKey(g.gen, j.self.Incarnation)
	if err := j.set(ctx, list, encodeList(members)); err != nil {
		return err
	}
	to := g.next()
	to.phase, to.listWriter = complete, j.self.Incarnation
	won, err := j.replaceState(ctx, g, to)
	if err != nil {
		return err
	}
	if !won {
		return j.deleteKey(ctx, list)
	}
	return j.set(ctx, j.decidedKey(g.gen), flagValue)
}

// outcome returns the result for a member that waited in the generation gen, which is no longer
// open in the state g. It returns the roster if that generation is complete with this member, and
// the failure as the error if it has failed, even if a later generation has begun. If the member
// must begin again, outcome deletes its claims and returns nil, nil. The error may also be that of
// ctx or of the store.
func (j *staticJoin) outcome(ctx context.Context, g *groupState, gen uint64) (*Roster, error) {
	switch {
	case g.is(failed, gen):
		return nil, j.acknowledgeFailure(ctx, g, rankAck(j.self.Rank))
	case g.is(complete, gen):
		members, err := j.members(ctx, g)
		if err != nil {
			return nil, err
		}
		if members != nil && members[j.self.Rank].Incarnation == j.self.Incarnation {
			return newRoster(j.groupAccess, j.self, g, members), nil
		}
	}
	j.deleteClaims(ctx, g)
	j.claimedGen = 0
	if g.gen > gen && g.failure != nil && g.failure.gen >= gen {
		return nil, g.failure.err() // the others know of the failure and have begun again
	}
	return nil, nil
}
