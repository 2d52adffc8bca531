package roster

import (
	"context"
)

// withdraw takes back what a joiner has claimed, so that its rank is free. The
// store may be out of reach: then it stays.
func (j *joiner) withdraw(ctx context.Context) {
	if _, err := j.swap(ctx, j.rankKey(j.entered, j.self.Rank), encodeEntry(j.self), nil); err != nil {
		return
	}
	for {
		g, err := j.look(ctx)
		if err != nil {
			return
		}
		if g.is(complete, j.entered) {
			j.resign(ctx, g)
			return
		}
		if !g.is(open, j.entered) {
			break
		}
		// Whoever read that all are there must not complete the group now.
		to := g.next()
		if j.alone(ctx) {
			to.phase = ended
		}
		if won, err := j.change(ctx, g, to); won || err != nil {
			break
		}
	}
	if g, err := j.look(ctx); err == nil {
		j.erase(ctx, g)
	}
}

// alone returns whether nobody wants to join any more. Whoever comes just now sees
// that the generation has ended.
func (j *joiner) alone(ctx context.Context) bool {
	for r := range j.world {
		if value, err := j.get(ctx, j.rankKey(j.entered, r)); value != nil || err != nil {
			return false
		}
	}
	return true
}

// resign leaves a group that has become complete with who wanted to withdraw.
func (j *joiner) resign(ctx context.Context, g *gate) {
	members, err := j.members(ctx, g)
	if err == nil && members != nil && members[j.self.Rank].Incarnation == j.self.Incarnation {
		_ = j.depart(ctx, g, j.self.Rank) // if that fails the member counts as dead, which it may be soon
		return
	}
	j.erase(ctx, g)
}

// erase removes claims that are worth nothing. Nobody but their maker misses them
// if that fails.
func (j *joiner) erase(ctx context.Context, g *gate) {
	rank, name := j.rankKey(j.entered, j.self.Rank), j.nameKey(j.entered, j.self.Name)
	if g.past(j.entered) {
		_ = j.drop(ctx, rank)
		_ = j.drop(ctx, name)
		return
	}
	_, _ = j.swap(ctx, rank, encodeEntry(j.self), nil)
	_, _ = j.swap(ctx, name, claim{j.self.Rank, j.self.Incarnation}.encode(), nil)
}
