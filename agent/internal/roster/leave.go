package roster

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
)

// markLeft notes on the store that the member of a rank has left the complete group g, and ends
// the group if that was the last one. Only a failure to note it is an error: if the group could
// not be ended, the next member that joins ends it.
func (v *groupAccess) markLeft(ctx context.Context, g *groupState, rank int) error {
	if err := v.set(ctx, v.leftKey(g.gen, rank), flagValue); err != nil {
		return err
	}
	if all, err := v.allLeft(ctx, g); all && err == nil {
		_ = v.endGroup(ctx, g)
	}
	return nil
}

// allLeft reports whether all members of a complete group have left.
func (v *groupAccess) allLeft(ctx context.Context, g *groupState) (bool, error) {
	return v.forEachRank(ctx, g.world, func(rank int) string { return v.leftKey(g.gen, rank) }, func(int, []byte) error { return nil })
}

// endGroup ends the complete group g, which all members must have left, notifies members that
// wait for the end, and removes the group's keys. It does nothing if the state is no longer g.
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

// isEnding reports whether a member that wants to join may wait for the end of the complete group
// g: whether the member of this rank has left, or, for a rank that the group does not have, any
// member has. It also returns true if the state has changed since g was read.
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

// awaitEnd blocks until the complete group g has ended, and returns nil. It ends the group itself
// once it finds that all members have left. The error is that of ctx or of the store.
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
			err = over.wait(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// forEachRank calls f for each rank below world with the value of the rank's key, and returns
// true. If a key does not exist, it stops and returns false and nil. It stops at the first error,
// also of f, and returns it. Each member visits the ranks in an order of its own: while many
// members are missing, a call finds one of them soon.
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

// withdraw takes back the claims of a join that failed, so that its rank is free: in an open
// generation it deletes them, in a complete one it marks the member as left. If the store cannot
// be reached the claims stay. claimedGen must be set.
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

// deleteClaims removes this member's claims of rank and name in the generation claimedGen; g is
// the current state. Errors are ignored, since the claims bind no other member any more.
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
