package roster

import (
	"cmp"
	"context"
	"slices"
	"sync"
)

// Roster is who is in a group, as this member last heard. Its methods may be called
// concurrently. What they return shares memory with it: do not change the URLs and
// Extra of a Member.
type Roster struct {
	visit  *visit
	group  string
	self   Member
	gen    uint64
	static bool

	mu   sync.Mutex
	seen *view
	left bool
}

// view is the members at one time.
type view struct {
	seq     uint64 // of the gate
	members []Member
	names   map[string]int // indices of members
}

func newView(seq uint64, members []Member) *view {
	v := &view{seq: seq, members: members, names: make(map[string]int, len(members))}
	for i, m := range members {
		v.names[m.Name] = i
	}
	return v
}

func newRoster(v *visit, self Member, g *gate, members []Member) *Roster {
	return &Roster{visit: v, self: self, gen: g.gen, static: self.Static, seen: newView(g.seq, members)}
}

func (r *Roster) view() *view {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

// Self is this member, with its rank.
func (r *Roster) Self() Member { return r.self }

// Generation grows with each group that is formed anew under one name.
func (r *Roster) Generation() uint64 { return r.gen }

// Members returns all members in the order of their ranks. The slice is the
// caller's.
func (r *Roster) Members() []Member { return slices.Clone(r.view().members) }

// Lookup returns the member of a name. One that has just joined a dynamic group may
// be unknown: call Refresh and try again.
func (r *Roster) Lookup(name string) (Member, bool) {
	v := r.view()
	i, ok := v.names[name]
	if !ok {
		return Member{}, false
	}
	return v.members[i], true
}

// Rank returns the member of a rank, as Lookup does.
func (r *Roster) Rank(rank int) (Member, bool) {
	members := r.view().members
	i, ok := slices.BinarySearchFunc(members, rank, func(m Member, rank int) int { return cmp.Compare(m.Rank, rank) })
	if !ok {
		return Member{}, false
	}
	return members[i], true
}

// Current returns whether an incarnation is the one that has this name now. Another
// one has been there before, or has just joined.
func (r *Roster) Current(name string, who Incarnation) bool {
	m, ok := r.Lookup(name)
	return ok && m.Incarnation == who
}

// Leave ends this member's part in the group. A static group is over once all have
// left. It waits for nobody. Once it has succeeded it does nothing any more.
func (r *Roster) Leave(ctx context.Context) error { return r.part(ctx, r.visit) }

// fewTries are enough for a store that has ended the connections which its client keeps,
// and is there.
const fewTries = 6

// LeaveNow is Leave that does not wait for a store that cannot be reached to come back.
func (r *Roster) LeaveNow(ctx context.Context) error {
	hasty, v := *r.visit.shelf, *r.visit
	hasty.tries = fewTries
	v.shelf = &hasty
	return r.part(ctx, &v)
}

func (r *Roster) part(ctx context.Context, v *visit) error {
	if r.hasLeft() {
		return nil
	}
	if err := r.leave(ctx, v); err != nil {
		return r.fail("leave", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = true
	return nil
}

func (r *Roster) hasLeft() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left
}

func (r *Roster) leave(ctx context.Context, v *visit) error {
	if !r.static {
		return v.strike(ctx, r.self.Name, r.self.Incarnation)
	}
	g, err := v.look(ctx)
	if err != nil || !g.is(complete, r.gen) {
		return err // what is over has noted that this one left
	}
	return v.depart(ctx, g, r.self.Rank)
}

// Remove takes a member off the list of a dynamic group, for whoever knows that it
// has died. It names the incarnation, so that one that has taken the name since
// stays. A member that is not there is no error.
func (r *Roster) Remove(ctx context.Context, name string, who Incarnation) error {
	err := ErrStatic
	if !r.static {
		err = r.visit.strike(ctx, name, who)
	}
	return r.fail("remove", err)
}

func (r *Roster) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{op, r.group, r.self.Name, err}
}
