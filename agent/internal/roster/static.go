package roster

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// JoinStatic joins a group of worldSize members, and returns once all of them have
// joined. self has the rank that it shall have; the caller keeps the store, which
// the [Roster] goes on using.
//
// Members who do not fit together, by name, rank, versions or world size, or with
// one who wants a dynamic group, fail: all of them, also those who come later, with
// the same error. Whoever has been told may try again, under the same group name.
// Once the group is complete, those who do not belong to it fail alone.
//
// A group that all members have left with Leave is over, and its name is free for
// the next one, of any size. As long as some have not left, those who have wait for
// them here. A member that died without leaving is never waited for by its
// successor: that gets ErrRejoin, and the group needs another name.
//
// When ctx ends, the error says which ranks are missing, and this member has
// withdrawn as far as the store could be reached within a second.
func JoinStatic(ctx context.Context, s store.Store, group string, self Member, worldSize int) (*Roster, error) {
	j := newJoiner(s, group, self, worldSize)
	err := checkJoin(group, j.self, worldSize)
	var r *Roster
	if err == nil {
		r, err = j.join(ctx)
	}
	if err != nil {
		return nil, &Error{"join", group, self.Name, err}
	}
	r.group = group
	return r, nil
}

func checkJoin(group string, self Member, world int) error {
	if err := checkGroup(group); err != nil {
		return err
	}
	if err := self.check(); err != nil {
		return err
	}
	switch {
	case world < 1 || world > maxWorld:
		return fmt.Errorf("%w: %d, and 1 to %d are possible", ErrWorldSize, world, maxWorld)
	case self.Rank < 0:
		return fmt.Errorf("%w: rank %d in a static group", ErrMember, self.Rank)
	case self.Rank >= world:
		return fmt.Errorf("%w: rank %d in a group of %d", ErrWorldSize, self.Rank, world)
	}
	return nil
}

// joiner is a member on its way into a static group.
type joiner struct {
	*visit
	self  Member
	world int

	entered uint64 // the generation in which it has claimed something; 0 for none
	behind  *gate  // the complete group whose end it waits for
}

func newJoiner(s store.Store, group string, self Member, world int) *joiner {
	self = self.private()
	self.Static = true
	return &joiner{visit: newVisit(s, group, self.Incarnation), self: self, world: world}
}

func (j *joiner) join(ctx context.Context) (*Roster, error) {
	for {
		g, err := j.look(ctx)
		var r *Roster
		if err == nil {
			r, err = j.step(ctx, g)
		}
		if err != nil {
			return nil, j.giveUp(ctx, err)
		}
		if r != nil {
			return r, nil
		}
	}
}

// step does what there is to do at a gate. It returns neither a roster nor an error
// where the gate must be looked at again.
func (j *joiner) step(ctx context.Context, g *gate) (*Roster, error) {
	switch {
	case g.vacant():
		return nil, j.begin(ctx, g)
	case g.phase == dynamic:
		return nil, failure{kind: mixture}.err()
	case g.phase == failed:
		told, err := j.hear(ctx, g, toldRank(j.self.Rank))
		if err == nil && told {
			err = j.begin(ctx, g)
		}
		return nil, err
	case g.phase == complete:
		return j.late(ctx, g)
	}
	return j.enter(ctx, g)
}

// begin opens the next generation. Somebody else may have, which is as good.
func (j *joiner) begin(ctx context.Context, g *gate) error {
	won, err := j.change(ctx, g, g.opened(open, j.world))
	if won && g.phase == failed {
		j.sweep(ctx, g)
	}
	return err
}

// late comes to a complete group. It may wait only where its rank has left, or where
// it never had one and the others are leaving.
func (j *joiner) late(ctx context.Context, g *gate) (*Roster, error) {
	waits, err := j.leaving(ctx, g, j.self.Rank)
	switch {
	case err != nil:
		return nil, err
	case waits:
		j.behind = g
		err := j.outlast(ctx, g)
		if err == nil {
			j.behind = nil
		}
		return nil, err
	case g.world != j.world:
		return nil, failure{kind: otherWorld, name: j.self.Name, a: j.world, b: g.world}.err()
	}
	members, err := j.members(ctx, g)
	if members == nil || err != nil {
		return nil, err
	}
	old := members[j.self.Rank]
	if bytes.Equal(encodeEntry(old), encodeEntry(j.self)) { // it could not withdraw, and comes again
		return newRoster(j.visit, j.self, g, members), nil
	}
	return nil, j.taken(old)
}

// taken says who has the rank.
func (j *joiner) taken(old Member) error {
	const advice = "if it has died, form the group under another name"
	if old.Incarnation == j.self.Incarnation {
		return clashf(ErrRejoin, "worker %s with rank %d has joined already, and said other things about itself", old.Name, old.Rank)
	}
	if old.Name == j.self.Name {
		return clashf(ErrRejoin, "worker %s with rank %d has joined as another incarnation, which has not left: %s", old.Name, old.Rank, advice)
	}
	both := errors.Join(ErrRejoin, ErrDuplicateRank)
	return clashf(both, "%v It has not left: %s", failure{kind: sameRank, name: old.Name, other: j.self.Name, a: old.Rank}.err(), advice)
}

// giveUp ends a join that failed. What it has claimed must not be in the way of a
// later attempt.
func (j *joiner) giveUp(ctx context.Context, cause error) error {
	over := ctx.Err() != nil || errors.Is(cause, context.DeadlineExceeded) // a store may be faster than the context
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), j.parting)
	defer cancel()
	if over {
		cause = j.missing(ctx, cause)
	}
	// The claims in a generation that failed tell who cleans up what there is.
	if _, told := errors.AsType[*clash](cause); j.entered != 0 && !told {
		j.withdraw(ctx)
	}
	return cause
}

// missing adds to the cause for whom this member has waited.
func (j *joiner) missing(ctx context.Context, cause error) error {
	gen, world, verb, key := j.entered, j.world, "joined", j.rankKey
	if j.behind != nil {
		gen, world, verb, key = j.behind.gen, j.behind.world, "left the group that there was before", j.goneKey
	}
	if gen == 0 {
		return cause
	}
	var ranks []int
	for r := range world {
		value, err := j.get(ctx, key(gen, r))
		if err != nil {
			return fmt.Errorf("who has not %s is not known: %w", verb, cause)
		}
		if value == nil {
			ranks = append(ranks, r)
		}
	}
	if len(ranks) == 0 {
		return cause
	}
	return fmt.Errorf("%s not %s: %w", describe(ranks, world), verb, cause)
}
