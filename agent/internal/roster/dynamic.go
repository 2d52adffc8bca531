package roster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// JoinDynamic joins a group whose members come and go, and returns at once, with
// those who are in it. A rank below 0 gets the lowest that is free. The caller
// keeps the store, which the [Roster] goes on using.
//
// The list of members is changed by compare-and-set, again and again until it
// succeeds, or ctx ends. Each failure is the success of somebody else. There is no
// token as in PyTorch, which a member that dies may hold for ever.
//
// A member that died without leaving stays in the list until somebody calls Remove
// for it. Without that, joining again under its name is [ErrRejoin], unless
// self.Replace is set. A name or rank that is taken, versions that no member has in
// common with another, and a static group are errors of this member alone; but a
// static group that still waits for members fails.
func JoinDynamic(ctx context.Context, s store.Store, group string, self Member) (*Roster, error) {
	self = self.private()
	self.Static, self.Rank = false, max(self.Rank, -1)
	a := &applicant{visit: newVisit(s, group, self.Incarnation), self: self}
	err := checkGroup(group)
	if err == nil {
		err = self.check()
	}
	var r *Roster
	if err == nil {
		r, err = a.join(ctx)
	}
	if err != nil {
		return nil, &Error{"join", group, self.Name, err}
	}
	r.group = group
	return r, nil
}

// applicant is a member on its way into a dynamic group.
type applicant struct {
	*visit
	self  Member
	tried bool // it may be in the list already
}

func (a *applicant) join(ctx context.Context) (*Roster, error) {
	for {
		g, err := a.look(ctx)
		var r *Roster
		if err == nil {
			r, err = a.step(ctx, g)
		}
		if err != nil && a.tried {
			a.retract(ctx)
		}
		if r != nil || err != nil {
			return r, err
		}
	}
}

// retract takes this member off the list, if a change succeeded of which it has not
// heard.
func (a *applicant) retract(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.parting)
	defer cancel()
	_ = a.strike(ctx, a.self.Name, a.self.Incarnation) // out of reach: it counts as dead
}

// step does what there is to do at a gate. It returns neither a roster nor an error
// where the gate must be looked at again.
func (a *applicant) step(ctx context.Context, g *gate) (*Roster, error) {
	switch {
	case g.vacant():
		return a.enter(ctx, g, g.opened(dynamic, 0))
	case g.phase == dynamic:
		return a.enter(ctx, g, g.next())
	case g.phase == failed:
		told, err := a.hear(ctx, g, toldDynamic)
		if err != nil || !told {
			return nil, err
		}
		r, err := a.enter(ctx, g, g.opened(dynamic, 0))
		if r != nil {
			a.sweep(ctx, g)
		}
		return r, err
	case g.phase == open:
		return nil, a.condemn(ctx, g, failure{kind: mixture, name: a.self.Name}, toldDynamic)
	}
	waits, err := a.leaving(ctx, g, -1)
	if err != nil {
		return nil, err
	}
	if !waits {
		return nil, failure{kind: mixture}.err()
	}
	return nil, a.outlast(ctx, g)
}

// enter puts this member into the list of a gate that is to take the place of
// another. It may be there: where the answer to a change was lost.
func (a *applicant) enter(ctx context.Context, from, to *gate) (*Roster, error) {
	if i := find(to.members, a.self.Name); i >= 0 && to.members[i].Incarnation == a.self.Incarnation {
		return newRoster(a.visit, to.members[i], from, to.members), nil
	}
	members, self, err := admit(to.members, a.self)
	if err != nil {
		return nil, err
	}
	to.members, a.tried = members, true
	won, err := a.change(ctx, from, to)
	if !won || err != nil {
		return nil, err
	}
	a.birth = &to.birth
	return newRoster(a.visit, self, to, members), nil
}

func find(members []Member, name string) int {
	return slices.IndexFunc(members, func(m Member) bool { return m.Name == name })
}

// admit returns the list with a new member, and that with its rank.
func admit(present []Member, self Member) ([]Member, Member, error) {
	members := slices.Clone(present)
	if i := find(members, self.Name); i >= 0 {
		old := members[i]
		if !self.Replace {
			return nil, self, twice(old, self)
		}
		if self.Rank < 0 {
			self.Rank = old.Rank
		}
		members = slices.Delete(members, i, i+1)
	}
	self.Replace = false
	place, err := seat(members, &self)
	if err != nil {
		return nil, self, err
	}
	return slices.Insert(members, place, self), self, nil
}

// seat returns the place of a new member in the list, and gives it a rank if it has
// none.
func seat(members []Member, self *Member) (place int, err error) {
	free := 0
	for _, m := range members {
		if m.Rank == self.Rank {
			return 0, failure{kind: sameRank, name: m.Name, other: self.Name, a: m.Rank}.err()
		}
		if !m.understands(*self) {
			return 0, failure{kind: noVersion, name: m.Name, other: self.Name}.err()
		}
		if m.Rank == free {
			free++
		}
		if m.Rank < self.Rank {
			place++
		}
	}
	if self.Rank >= 0 {
		return place, nil
	}
	if free > maxRank {
		return 0, fmt.Errorf("%w: no rank is free", ErrMember)
	}
	self.Rank = free
	return free, nil
}

// twice is what a name that is taken means: another worker, or one that was started
// again.
func twice(old, self Member) error {
	if self.Rank >= 0 && self.Rank != old.Rank {
		return failure{kind: sameName, name: old.Name, a: old.Rank, b: self.Rank}.err()
	}
	return clashf(errors.Join(ErrRejoin, ErrDuplicateName),
		"RPC worker name %s is not unique. Another incarnation has it, with rank %d, and has not left: if it has died, remove or replace it", old.Name, old.Rank)
}

// strike takes an incarnation off the list. It may have gone already.
func (v *visit) strike(ctx context.Context, name string, who Incarnation) error {
	for {
		g, err := v.look(ctx)
		if err != nil {
			return err
		}
		i := find(g.members, name)
		if i < 0 || g.members[i].Incarnation != who {
			return nil
		}
		to := g.next()
		to.members = slices.Delete(slices.Clone(g.members), i, i+1)
		if won, err := v.change(ctx, g, to); won || err != nil {
			return err
		}
	}
}
