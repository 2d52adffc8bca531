package roster

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
)

// markLeft writes to the store that the member with that rank has left the complete group g. If it
// was the last one, markLeft also ends the group. The error is that of the write. A failure to end
// the group is ignored, because the next member that joins ends it.
func (v *groupAccess) markLeft(ctx context.Context, g *groupState, rank int) error {
	if err := v.set(ctx, v.leftKey(g.gen, rank), flagValue); err != nil {
		return err
	}
	if all, err := v.allLeft(ctx, g); all && err == nil {
		_ = v.endGroup(ctx, g)
	}
	return nil
}

// allLeft reports whether all members of the complete group g have left. The error is that of the
// store or ctx; the result is then false.
func (v *groupAccess) allLeft(ctx context.Context, g *groupState) (bool, error) {
	return v.forEachRank(ctx, g.world, func(rank int) string { return v.leftKey(g.gen, rank) }, func(int, []byte) error { return nil })
}

// endGroup ends the complete group g, which all members must have left, notifies members that wait
// for the end, and deletes the group's keys. It does nothing and returns nil if the state on the
// store is no longer g. The error is that of changing the state or of the notification.
func (v *groupAccess) endGroup(ctx context.Context, g *groupState) error {
	to := g.next()
	to.phase = ended
	won, err := v.replaceState(ctx, g, to)
	if !won || err != nil {
		return err
	}
	err = v.set(ctx, v.endedKey(g.gen), flagValue)
	v.sweep(ctx, g)
	return err
}

// isEnding reports whether a member that wants to join with this rank may wait for the end of the
// complete group g. It may if the member of g with the same rank has left; if g has no such rank,
// as for a negative one, it may if any member has left. isEnding also returns true if the group's
// state has changed since g was read. After an error of the store or ctx the result has no meaning.
func (v *groupAccess) isEnding(ctx context.Context, g *groupState, rank int) (bool, error) {
	from, to := rank, rank+1
	if rank < 0 || rank >= g.world {
		from, to = 0, g.world
	}
	for r := from; r < to; r++ {
		if value, err := v.get(ctx, v.leftKey(g.gen, r)); value != nil || err != nil {
			return value != nil, err
		}
	}
	same, err := v.unchanged(ctx, g)
	return !same, err
}

// awaitEnd blocks until the generation of the complete group g is no longer complete, and returns
// nil. It calls v.onWait before each wait. Once it finds that all members have left, it ends the
// group itself. The error is that of ctx or of reading or changing the group's state.
func (v *groupAccess) awaitEnd(ctx context.Context, g *groupState) error {
	over := newNotification(v.keySpace, v.endedKey(g.gen))
	for {
		now, err := v.readState(ctx)
		if err != nil || !now.is(complete, g.gen) {
			return err
		}
		all, err := v.allLeft(ctx, now)
		switch {
		case err != nil:
			return err
		case all:
			err = v.endGroup(ctx, now)
		default:
			v.onWait(ctx)
			err = over.wait(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// forEachRank reads the store's key key(rank) for each rank from 0 to world-1, and calls f with the
// rank and the value. It returns true after all calls. If a key does not exist or is empty,
// forEachRank stops and returns false and nil. It stops at the first error of the store, of ctx or
// of f, and returns false and that error. Each member visits the ranks in an order of its own:
// while many members are missing, a call finds one of them soon.
func (v *groupAccess) forEachRank(ctx context.Context, world int, key func(rank int) string, f func(rank int, value []byte) error) (bool, error) {
	high, low := binary.LittleEndian.Uint64(v.id[:8]), binary.LittleEndian.Uint64(v.id[8:])
	for _, rank := range rand.New(rand.NewPCG(high, low)).Perm(world) {
		value, err := v.get(ctx, key(rank))
		if value == nil || err != nil {
			return false, err
		}
		if err := f(rank, value); err != nil {
			return false, err
		}
	}
	return true, nil
}

// withdraw takes back this member's claims of its rank and name in the group's generation
// j.claimedGen, after its join has failed. In an open generation it deletes the claims and changes
// the state, so that no other member completes the group with them; if no claim remains, it ends
// the generation. In a complete one whose list has this member it marks the member as left. If the
// store cannot be reached the claims stay. j.claimedGen must not be 0.
func (j *staticJoin) withdraw(ctx context.Context) {
	if _, err := j.compareAndSwap(ctx, j.rankKey(j.claimedGen, j.self.Rank), encodeEntry(j.self), nil); err != nil {
		return
	}
	for {
		g, err := j.readState(ctx)
		if err != nil {
			return
		}
		if g.is(complete, j.claimedGen) {
			members, err := j.members(ctx, g)
			if err == nil && members != nil && members[j.self.Rank].Incarnation == j.self.Incarnation {
				_ = j.markLeft(ctx, g, j.self.Rank) // on failure the member counts as dead
			} else {
				j.deleteClaims(ctx, g)
			}
			return
		}
		if !g.is(open, j.claimedGen) {
			break
		}
		// Change the state, so that a member that has read all claims cannot complete the group.
		// The generation ends with its last claim: a member that joins concurrently finds that out.
		to := g.next()
		claimed := false
		for r := 0; r < j.world && !claimed; r++ {
			value, err := j.get(ctx, j.rankKey(j.claimedGen, r))
			claimed = value != nil || err != nil
		}
		if !claimed {
			to.phase = ended
		}
		if won, err := j.replaceState(ctx, g, to); won || err != nil {
			break
		}
	}
	if g, err := j.readState(ctx); err == nil {
		j.deleteClaims(ctx, g)
	}
}

// deleteClaims removes this member's claims of its rank and name in the group's generation
// j.claimedGen from the store. g is the present state of the group: while that generation goes on,
// a claim is removed only if it is still this member's. Errors are ignored, because the claims bind
// no other member any more.
func (j *staticJoin) deleteClaims(ctx context.Context, g *groupState) {
	rank, name := j.rankKey(j.claimedGen, j.self.Rank), j.nameKey(j.claimedGen, j.self.Name)
	if g.gen > j.claimedGen || g.is(ended, j.claimedGen) {
		_ = j.deleteKey(ctx, rank)
		_ = j.deleteKey(ctx, name)
		return
	}
	_, _ = j.compareAndSwap(ctx, rank, encodeEntry(j.self), nil)
	_, _ = j.compareAndSwap(ctx, name, claim{j.self.Rank, j.self.Incarnation}.encode(), nil)
}
