package roster

import (
	"bytes"
	"context"
)

// enter claims a rank and a name in an open generation, and waits there.
func (j *joiner) enter(ctx context.Context, g *gate) (*Roster, error) {
	if g.world != j.world {
		return nil, j.refuse(ctx, g, failure{kind: otherWorld, name: j.self.Name, a: j.world, b: g.world})
	}
	j.entered = g.gen
	f, err := j.claimRank(ctx, g.gen)
	if f == nil && err == nil {
		f, err = j.claimName(ctx, g.gen)
	}
	if err != nil {
		return nil, err
	}
	if f != nil {
		return nil, j.refuse(ctx, g, *f)
	}
	return j.attend(ctx, g.gen)
}

func (j *joiner) refuse(ctx context.Context, g *gate, f failure) error {
	return j.condemn(ctx, g, f, toldRank(j.self.Rank))
}

// claimRank returns what is wrong where another one wants that rank.
func (j *joiner) claimRank(ctx context.Context, gen uint64) (*failure, error) {
	key, mine := j.rankKey(gen, j.self.Rank), encodeEntry(j.self)
	for expected := []byte(nil); ; {
		now, err := j.swap(ctx, key, expected, mine)
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
			// An attempt of before, which could not be withdrawn.
		case other.Name == j.self.Name:
			return &failure{kind: rejoined, name: other.Name, a: other.Rank}, nil
		default:
			return &failure{kind: sameRank, name: other.Name, other: j.self.Name, a: other.Rank}, nil
		}
	}
}

// claimName lets a name that comes twice be found before all are there. A claim
// follows that of the rank; one without that was withdrawn, or its maker died.
func (j *joiner) claimName(ctx context.Context, gen uint64) (*failure, error) {
	key, mine := j.nameKey(gen, j.self.Name), claim{j.self.Rank, j.self.Incarnation}.encode()
	for expected := []byte(nil); ; {
		now, err := j.swap(ctx, key, expected, mine)
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
		stands, err := j.stands(ctx, gen, other)
		if err != nil {
			return nil, err
		}
		if stands {
			return &failure{kind: sameName, name: j.self.Name, a: min(other.rank, j.self.Rank), b: max(other.rank, j.self.Rank)}, nil
		}
	}
}

// stands returns whether who claimed a name still wants its rank.
func (j *joiner) stands(ctx context.Context, gen uint64, c claim) (bool, error) {
	value, err := j.get(ctx, j.rankKey(gen, c.rank))
	if value == nil || err != nil {
		return false, err
	}
	m, err := decodeEntry(value, c.rank)
	return m.Incarnation == c.who, err
}

// attend waits until it is decided what becomes of the generation, and decides
// itself if it can.
func (j *joiner) attend(ctx context.Context, gen uint64) (*Roster, error) {
	decided := newBell(j.shelf, j.decidedKey(gen))
	for {
		g, err := j.look(ctx)
		if err != nil {
			return nil, err
		}
		if !g.is(open, gen) {
			return j.outcome(ctx, g, gen)
		}
		members, err := j.roll(ctx, gen)
		if err != nil {
			return nil, err
		}
		if members == nil {
			err = decided.wait(ctx)
		} else if f := judge(members); f != nil {
			return nil, j.refuse(ctx, g, *f)
		} else {
			err = j.conclude(ctx, g, members)
		}
		if err != nil {
			return nil, err
		}
	}
}

// roll returns all members, or nil if one is missing.
func (j *joiner) roll(ctx context.Context, gen uint64) ([]Member, error) {
	members := make([]Member, j.world)
	all, err := j.every(ctx, j.world, func(rank int) string { return j.rankKey(gen, rank) }, func(rank int, value []byte) (err error) {
		members[rank], err = decodeEntry(value, rank)
		return err
	})
	if !all {
		return nil, err
	}
	return members, nil
}

// conclude makes the group complete, if it is still as it was.
func (j *joiner) conclude(ctx context.Context, g *gate, members []Member) error {
	list := j.listKey(g.gen, j.self.Incarnation)
	if err := j.set(ctx, list, encodeList(members)); err != nil {
		return err
	}
	to := g.next()
	to.phase, to.lister = complete, j.self.Incarnation
	won, err := j.change(ctx, g, to)
	if err != nil {
		return err
	}
	if !won {
		return j.drop(ctx, list)
	}
	return j.set(ctx, j.decidedKey(g.gen), mark)
}

// outcome is what has become of the generation, for who waited in it. It returns
// neither a roster nor an error where that concerns others.
func (j *joiner) outcome(ctx context.Context, g *gate, gen uint64) (*Roster, error) {
	switch {
	case g.is(failed, gen):
		return nil, j.tell(ctx, g, toldRank(j.self.Rank))
	case g.is(complete, gen):
		members, err := j.members(ctx, g)
		if err != nil {
			return nil, err
		}
		if members != nil && members[j.self.Rank].Incarnation == j.self.Incarnation {
			return newRoster(j.visit, j.self, g, members), nil
		}
	}
	j.erase(ctx, g)
	j.entered = 0
	if g.gen > gen && g.failure != nil && g.failure.gen >= gen {
		return nil, g.failure.err() // others have heard of it, and try again
	}
	return nil, nil
}
