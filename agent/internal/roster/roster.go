// Package roster lets the members of a group find each other through a store, before there
// is any pipe between them.
//
// A static group has a fixed size: [JoinStatic] returns once all members have joined, or
// fails for all of them. Members of a dynamic group come and go: [JoinDynamic] returns at
// once, with the present members. Both return a [Roster].
//
// # On the store
//
// One key, named gate, holds the state of the group: its generation and phase. The state is
// changed only by compare-and-set, so that its versions form one history, which all members
// see. Each change increments a sequence number in it, so that no version occurs twice.
//
//	roster/<group>/gate               the state; with the members of a dynamic group
//	roster/<group>/removed            the latest members that were removed from a dynamic group
//	roster/<group>/<gen>/rank/<rank>  the member that claims this rank
//	roster/<group>/<gen>/name/<name>  the member that claims this name
//	roster/<group>/<gen>/list/<id>    the member list, as incarnation id found it complete
//	roster/<group>/<gen>/gone/<rank>  exists once this member has left
//	roster/<group>/<gen>/told/<rank>  exists once this member knows that the generation failed
//	roster/<group>/<gen>/decided      notification: no longer open
//	roster/<group>/<gen>/over         notification: ended
//
// A static generation is open until a member finds all ranks claimed and makes it complete,
// or finds a conflict and makes it failed. A member that withdraws deletes its claim and then
// changes the state, so that no other member completes the generation with the claims it has
// read before. A complete generation has ended when all members have left. The next one has
// its own keys: late writes to the last one do no harm.
//
// All other keys are claims and hints: every waiting member reads them again from time to
// time, and completes what a member that died has begun.
package roster

import (
	"context"
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// Roster is the members of a group, as this member last read them. Its methods may be called
// concurrently. The Members that they return share memory with the Roster: their URLs and Extra
// must not be changed.
type Roster struct {
	groupAccess *groupAccess
	group       string
	self        Member
	gen         uint64
	static      bool

	mu     sync.Mutex
	latest *snapshot
	left   bool
}

// snapshot is the member list at one version of the state.
type snapshot struct {
	seq     uint64 // of the state
	members []Member
	names   map[string]int // index in members
	removed []Incarnation  // as the store listed them when a member was last found missing
}

// newSnapshot returns a snapshot of a group's members, read from its state with the sequence number
// seq. It keeps members.
func newSnapshot(seq uint64, members []Member) *snapshot {
	v := &snapshot{seq: seq, members: members, names: make(map[string]int, len(members))}
	for i, m := range members {
		v.names[m.Name] = i
	}
	return v
}

// contains reports whether the incarnation m is in the list.
func (v *snapshot) contains(m Member) bool {
	i, ok := v.names[m.Name]
	return ok && v.members[i].Incarnation == m.Incarnation
}

// newRoster returns the Roster of the member self in the group with the state g. The Roster keeps
// v, self and members.
func newRoster(v *groupAccess, self Member, g *groupState, members []Member) *Roster {
	return &Roster{groupAccess: v, self: self, gen: g.gen, static: self.Static, latest: newSnapshot(g.seq, members)}
}

// snapshot returns the latest snapshot of the members, which must not be modified.
func (r *Roster) snapshot() *snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.latest
}

// Self returns the member that joined, with the rank that it has in the group. Its URLs and Extra
// share memory with the Roster and must not be changed.
func (r *Roster) Self() Member { return r.self }

// Generation returns the number of this group among those under the same name. A later group has a
// larger number.
func (r *Roster) Generation() uint64 { return r.gen }

// Members returns the members ordered by rank, as they were last read from the store. The slice
// belongs to the caller; the URLs and Extra of its members share memory with the Roster and must
// not be changed.
func (r *Roster) Members() []Member { return slices.Clone(r.snapshot().members) }

// Leave takes this member out of the group and returns nil. It does not wait for other members. A
// static group ends once all its members have left. After Leave has succeeded further calls do
// nothing. If the member was removed before, or the group has ended, Leave succeeds too. The error
// is an [*Error]. It matches [ErrLost] if the store has lost the group, [ErrCorrupt] or [ErrVersion]
// for a value on the store that cannot be read, and otherwise wraps that of the store or of ctx.
func (r *Roster) Leave(ctx context.Context) error { return r.leaveWith(ctx, r.groupAccess) }

// leaveNowTries bounds the attempts of LeaveNow. It is enough for a store that is up but has
// closed the idle connections of its client.
const leaveNowTries = 6

// LeaveNow does the same as Leave, but makes each request to the store at most 6 times while
// connections fail, so that it does not wait for an unreachable store to come back.
func (r *Roster) LeaveNow(ctx context.Context) error {
	limited, v := *r.groupAccess.keySpace, *r.groupAccess
	limited.maxTries = leaveNowTries
	v.keySpace = &limited
	return r.leaveWith(ctx, &v)
}

// leaveWith takes this member out of the group, as Leave describes, with v as the access to the
// store. After success it sets r.left, and later calls do nothing. The caller must not hold r.mu.
// The error is an [*Error].
func (r *Roster) leaveWith(ctx context.Context, v *groupAccess) error {
	r.mu.Lock()
	left := r.left
	r.mu.Unlock()
	if left {
		return nil
	}
	if r.static {
		g, err := v.readState(ctx)
		if err == nil && g.is(complete, r.gen) { // one that has ended knows that this member left
			err = v.markLeft(ctx, g, r.self.Rank)
		}
		if err != nil {
			return r.fail("leave", err)
		}
	} else if err := v.removeMember(ctx, r.self.Name, r.self.Incarnation); err != nil {
		return r.fail("leave", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = true
	return nil
}

// Remove removes a member that the caller knows to be dead from the list of a dynamic group. It
// removes only the incarnation id, so that a successor with the same name stays. If that
// incarnation is not in the list, Remove returns nil. The error, an [*Error], matches [ErrStatic]
// for a static group. The member lists in Rosters change with their next Refresh.
func (r *Roster) Remove(ctx context.Context, name string, id Incarnation) error {
	err := ErrStatic
	if !r.static {
		err = r.groupAccess.recordRemoved(ctx, id)
	}
	if err == nil {
		err = r.groupAccess.removeMember(ctx, name, id)
	}
	return r.fail("remove", err)
}

// Removed reports whether Remove was called, by this or another member, for the incarnation id,
// which has been missing since a Refresh, or since a change that Watch has reported. Calls of
// Remove after that Refresh do not count. The store has only the 64 incarnations for which Remove
// was called last; for others the result is false.
func (r *Roster) Removed(id Incarnation) bool {
	return slices.Contains(r.snapshot().removed, id)
}

// fail returns an [*Error] of the operation op with the cause err and the names of the group and of
// this member. It returns nil if err is nil.
func (r *Roster) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{op, r.group, r.self.Name, err}
}

// Refresh reads the member list of a dynamic group from the store, for later calls of Members. For
// a static group, whose list never changes, it returns nil at once. The error, an [*Error], matches
// [ErrRemoved] if this member is no longer in the list though it has not left; Members then returns
// the new list nevertheless.
func (r *Roster) Refresh(ctx context.Context) error {
	if r.static {
		return nil
	}
	_, err := r.refresh(ctx)
	return r.fail("refresh", err)
}

// refresh reads the member list from the store and returns a snapshot of it. If that is newer than
// r.latest, it becomes r.latest; it may be older than the one that a concurrent call has stored. If
// this member is not in the list though it has not left, refresh returns the snapshot and
// ErrRemoved. After any other error the snapshot is nil.
func (r *Roster) refresh(ctx context.Context) (*snapshot, error) {
	g, err := r.groupAccess.readState(ctx)
	if err != nil {
		return nil, err
	}
	found := newSnapshot(g.seq, g.members)
	before := r.snapshot()
	found.removed = before.removed
	if slices.ContainsFunc(before.members, func(m Member) bool { return !found.contains(m) }) {
		if found.removed, err = r.groupAccess.removed(ctx); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if found.seq > r.latest.seq {
		r.latest = found
	}
	if !r.left && !found.contains(r.self) {
		return found, ErrRemoved
	}
	return found, nil
}

// Change is a member that has joined or left.
type Change struct {
	Member Member
	Joined bool // or else it has left, or was removed or replaced
}

// Watch calls report for each member that joins or leaves a dynamic group, beginning with the
// changes since the Roster was last refreshed, and refreshes the Roster with each change. The calls
// are made on the caller's goroutine, and hold no lock. A member that joins and leaves quickly may
// be missed; a new incarnation is reported after the old one has been reported as left. Watch
// blocks until ctx ends or until the first error other than a lost connection, such as
// [ErrRemoved], and returns that as an [*Error]. For a static group it makes no calls, and blocks
// until ctx ends.
func (r *Roster) Watch(ctx context.Context, report func(Change)) error {
	if r.static {
		<-ctx.Done()
		return r.fail("watch", ctxerr.Wrap(ctx.Err()))
	}
	known := r.snapshot()
	for wait := firstBackoff; ; wait = min(2*wait, lastBackoff) {
		now, err := r.follow(ctx, known, report)
		if now.seq > known.seq {
			wait = firstBackoff // there was progress
		}
		known = now
		if !isConnError(err) || ctx.Err() != nil {
			return r.fail("watch", err)
		}
		if err := sleep(ctx, wait); err != nil {
			return r.fail("watch", err)
		}
	}
}

// follow calls report for the changes since the snapshot known, and for later ones, until a call to
// the store fails or this member is no longer in the group. It returns the last snapshot whose
// changes it has reported, or the argument known if it has reported none, and the error, which is
// never nil.
func (r *Roster) follow(ctx context.Context, known *snapshot, report func(Change)) (*snapshot, error) {
	var w store.Watcher
	err := r.groupAccess.retry(ctx, func() (err error) {
		w, err = r.groupAccess.base.Watch(ctx, r.groupAccess.stateKey())
		return err
	})
	if err != nil {
		return known, err
	}
	defer w.Close()
	for {
		now, err := r.refresh(ctx)
		if now != nil && now.seq > known.seq {
			reportChanges(known, now, report)
			known = now
		}
		if err != nil {
			return known, err
		}
		if _, err := w.Next(ctx); err != nil {
			return known, err
		}
	}
}

// reportChanges calls report for each member that is in only one of the two snapshots, first for
// those that left, then for those that joined, both ordered by rank. A new incarnation under a name
// is reported as left and as joined.
func reportChanges(old, now *snapshot, report func(Change)) {
	for _, m := range old.members {
		if !now.contains(m) {
			report(Change{Member: m})
		}
	}
	for _, m := range now.members {
		if !old.contains(m) {
			report(Change{Member: m, Joined: true})
		}
	}
}
