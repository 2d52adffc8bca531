package roster

import (
	"context"
	"fmt"
	"slices"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// JoinDynamic adds self to a group whose members come and go, and returns a [Roster] with the
// present members. It does not wait for other members, except that it blocks while a static group
// of that name is ending. A negative rank is replaced by the lowest free one. self is copied. The
// [Roster] goes on using the store, which remains the caller's. The error is an [*Error].
//
// The member list is changed by compare-and-set, repeated until it succeeds or ctx ends; an attempt
// fails only when that of another member succeeds. There is no lock as in PyTorch, which a member
// that dies would never release.
//
// A member that died without leaving stays in the list until another member calls Remove for it.
// Until then joining under its name fails with [ErrRejoin], unless self.Replace is set. A name or
// rank in use, a version conflict with a present member, and a complete static group are errors of
// this member alone. But if a static group of that name still waits for members, all of them and
// this member fail with [ErrMixed].
func JoinDynamic(ctx context.Context, s store.Store, group string, self Member) (*Roster, error) {
	self = self.clone()
	self.Static, self.Rank = false, max(self.Rank, -1)
	a := &dynamicJoin{groupAccess: newGroupAccess(s, group, self.Incarnation), self: self}
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

// dynamicJoin is a member that joins a dynamic group.
type dynamicJoin struct {
	*groupAccess
	self  Member
	tried bool // the member may be in the list already
}

func (a *dynamicJoin) join(ctx context.Context) (*Roster, error) {
	for {
		g, err := a.readState(ctx)
		var r *Roster
		if err == nil {
			r, err = a.advance(ctx, g)
		}
		if err != nil && a.tried { // a change may have succeeded whose reply was lost
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cleanupTimeout)
			defer cancel()
			_ = a.removeMember(ctx, a.self.Name, a.self.Incarnation) // on failure the member counts as dead
		}
		if r != nil || err != nil {
			return r, err
		}
	}
}

// advance performs the step of joining that the group's state g requires. It returns the roster
// once this member is in the group's list. It returns neither a roster nor an error if the caller
// must read the state again and call advance with it. If a static group is open, advance makes it
// fail; if one is ending, advance blocks until it has ended. The error is the reason why this
// member cannot join, or that of ctx or of the store.
func (a *dynamicJoin) advance(ctx context.Context, g *groupState) (*Roster, error) {
	switch {
	case g.available():
		return a.addSelf(ctx, g, g.nextGeneration(dynamic, 0))
	case g.phase == dynamic:
		return a.addSelf(ctx, g, g.next())
	case g.phase == failed:
		acked, err := a.learnFailure(ctx, g, dynamicAck)
		if err != nil || !acked {
			return nil, err
		}
		r, err := a.addSelf(ctx, g, g.nextGeneration(dynamic, 0))
		if r != nil {
			a.sweep(ctx, g)
		}
		return r, err
	case g.phase == open:
		return nil, a.failGroup(ctx, g, failure{kind: mixedKinds, name: a.self.Name}, dynamicAck)
	}
	waits, err := a.isEnding(ctx, g, -1)
	if err != nil {
		return nil, err
	}
	if !waits {
		return nil, failure{kind: mixedKinds}.err()
	}
	return nil, a.awaitEnd(ctx, g)
}

// addSelf inserts this member into the member list of the group's new state, the argument to, and
// stores the new state if the store still has the state from. Then it returns the roster. If the
// member is in the list already, because the reply to an earlier change was lost, addSelf stores
// nothing and returns the roster. It returns nil and no error if another member has changed the
// state since from was read. The error is the conflict with a member in the list, or that of the
// store or ctx. addSelf changes to.members, and sets a.tried before it changes the store.
func (a *dynamicJoin) addSelf(ctx context.Context, from, to *groupState) (*Roster, error) {
	if i := indexOf(to.members, a.self.Name); i >= 0 && to.members[i].Incarnation == a.self.Incarnation {
		return newRoster(a.groupAccess, to.members[i], from, to.members), nil
	}
	members, self, err := insertMember(to.members, a.self)
	if err != nil {
		return nil, err
	}
	to.members, a.tried = members, true
	won, err := a.replaceState(ctx, from, to)
	if !won || err != nil {
		return nil, err
	}
	a.storeID = &to.storeID
	return newRoster(a.groupAccess, self, to, members), nil
}

func indexOf(members []Member, name string) int {
	return slices.IndexFunc(members, func(m Member) bool { return m.Name == name })
}

// insertMember returns a copy of the list present, ordered by rank, with self in it, and self with
// its rank: a negative one becomes the lowest free rank. If self.Replace is true, self replaces the
// member of the same name, and takes its rank if that of self is negative. The members of the
// result share their URLs and Extra with those of the arguments. The error matches
// ErrDuplicateName, ErrDuplicateRank, ErrRejoin, ErrVersion, or ErrMember if no rank is free; the
// list is then nil.
func insertMember(present []Member, self Member) ([]Member, Member, error) {
	members := slices.Clone(present)
	if i := indexOf(members, self.Name); i >= 0 {
		old := members[i]
		switch {
		case !self.Replace && self.Rank >= 0 && self.Rank != old.Rank:
			return nil, self, failure{kind: sameName, name: old.Name, a: old.Rank, b: self.Rank}.err()
		case !self.Replace:
			return nil, self, &NotLeftError{old.Name, old.Rank}
		case self.Rank < 0:
			self.Rank = old.Rank
		}
		members = slices.Delete(members, i, i+1)
	}
	self.Replace = false
	index, free := 0, 0 // of the new member; the lowest free rank
	for _, m := range members {
		if m.Rank == self.Rank {
			return nil, self, failure{kind: sameRank, name: m.Name, other: self.Name, a: m.Rank}.err()
		}
		if !m.compatible(self) {
			return nil, self, failure{kind: noCommonVersion, name: m.Name, other: self.Name}.err()
		}
		if m.Rank == free {
			free++
		}
		if m.Rank < self.Rank {
			index++
		}
	}
	if self.Rank < 0 {
		if free > maxRank {
			return nil, self, fmt.Errorf("%w: no rank is free", ErrMember)
		}
		self.Rank, index = free, free
	}
	return slices.Insert(members, index, self), self, nil
}

// removeMember removes the incarnation id of the member with that name from the list of a dynamic
// group on the store. It tries again while other members change the list concurrently. It returns
// nil without a change if that incarnation is not in the list. The error is that of reading or
// writing the group's state.
func (v *groupAccess) removeMember(ctx context.Context, name string, id Incarnation) error {
	for {
		g, err := v.readState(ctx)
		if err != nil {
			return err
		}
		i := indexOf(g.members, name)
		if i < 0 || g.members[i].Incarnation != id {
			return nil
		}
		to := g.next()
		to.members = slices.Delete(slices.Clone(g.members), i, i+1)
		if won, err := v.replaceState(ctx, g, to); won || err != nil {
			return err
		}
	}
}
