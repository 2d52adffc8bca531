package roster

import (
	"bytes"
	"context"
)

// joinOpen claims this member's rank and name in the open generation g, and waits for its
// outcome. A conflict fails the generation for all members. It returns neither a roster nor an
// error if the state must be read again.
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

// claimRank claims this member's rank in a generation. It returns nil twice if it succeeded, the
// conflict if another member or incarnation has the rank, or an error of the store.
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

// claimName claims this member's name, so that a duplicate is found before all members have
// joined. It returns nil twice if it succeeded, the conflict if another member has the name, or
// an error of the store.
//
// The rank must have been claimed before: a claim of a name holds only while the same member
// claims its rank. Otherwise that member has withdrawn or died, and its claim is replaced.
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

// awaitDecision waits until the generation gen, in which this member has its claims, is no longer
// open, and returns the results of outcome. If it finds all ranks claimed, it completes the
// generation itself, or fails it if there is a conflict. It returns nil twice if the member must
// begin again.
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

// completeGroup writes the member list, makes the group complete, and notifies the members that
// wait. If the state has changed since g was read it only deletes the list again and returns nil.
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

// outcome returns the result for a member that waited in the generation gen, which g shows to be
// no longer open: the roster, or the failure as the error. It returns neither, after deleting the
// member's claims, if the member must begin again.
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
