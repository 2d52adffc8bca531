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
}

// newSnapshot returns the snapshot of members, which it keeps, at the version seq.
func newSnapshot(seq uint64, members []Member) *snapshot {
	v := &snapshot{seq: seq, members: members, names: make(map[string]int, len(members))}
	for i, m := range members {
		v.names[m.Name] = i
	}
	return v
}

// newRoster returns the Roster of self in the group with the state g and these members, which it keeps.
func newRoster(v *groupAccess, self Member, g *groupState, members []Member) *Roster {
	return &Roster{groupAccess: v, self: self, gen: g.gen, static: self.Static, latest: newSnapshot(g.seq, members)}
}

// snapshot returns the latest snapshot.
func (r *Roster) snapshot() *snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.latest
}

// Self returns this member, with its rank.
func (r *Roster) Self() Member { return r.self }

// Generation returns a number that is larger for each later group under the same name.
func (r *Roster) Generation() uint64 { return r.gen }

// Members returns all members ordered by rank. The slice belongs to the caller.
func (r *Roster) Members() []Member { return slices.Clone(r.snapshot().members) }

// Leave takes this member out of the group. It does not wait for other members; a static group
// ends once all have left. After it has succeeded further calls do nothing. The error is an
// [*Error] with the cause of the store or ctx.
func (r *Roster) Leave(ctx context.Context) error { return r.leaveWith(ctx, r.groupAccess) }

// leaveNowTries bounds the attempts of LeaveNow. It is enough for a store that is up but has
// closed the idle connections of its client.
const leaveNowTries = 6

// LeaveNow is Leave, but it makes at most leaveNowTries attempts, so that it does not wait for an
// unreachable store to come back.
func (r *Roster) LeaveNow(ctx context.Context) error {
	limited, v := *r.groupAccess.keySpace, *r.groupAccess
	limited.maxTries = leaveNowTries
	v.keySpace = &limited
	return r.leaveWith(ctx, &v)
}

// leaveWith is Leave with the access v to the store.
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
// removes the incarnation id only, so that a successor under the name stays. Removing a member
// that is not in the list is no error. The error, an [*Error], matches [ErrStatic] for a static
// group.
func (r *Roster) Remove(ctx context.Context, name string, id Incarnation) error {
	err := ErrStatic
	if !r.static {
		err = r.groupAccess.removeMember(ctx, name, id)
	}
	return r.fail("remove", err)
}

// fail returns err as an [*Error] of the operation op, or nil if err is nil.
func (r *Roster) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{op, r.group, r.self.Name, err}
}

// Refresh reads the member list of a dynamic group again; for a static group, which never
// changes, it does nothing. The error, an [*Error], matches [ErrRemoved] if this member is no
// longer in the list though it has not left; the list is then up to date nonetheless.
func (r *Roster) Refresh(ctx context.Context) error {
	if r.static {
		return nil
	}
	_, err := r.refresh(ctx)
	return r.fail("refresh", err)
}

// refresh reads the member list from the store, keeps it if it is newer than the latest, and
// returns the snapshot read. That may be older than the one that a concurrent call has stored. If
// this member is not in the list, refresh returns the snapshot and ErrRemoved. After any other
// error the snapshot is nil.
func (r *Roster) refresh(ctx context.Context) (*snapshot, error) {
	g, err := r.groupAccess.readState(ctx)
	if err != nil {
		return nil, err
	}
	found := newSnapshot(g.seq, g.members)
	r.mu.Lock()
	defer r.mu.Unlock()
	if found.seq > r.latest.seq {
		r.latest = found
	}
	i, ok := found.names[r.self.Name]
	if !r.left && (!ok || found.members[i].Incarnation != r.self.Incarnation) {
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
// changes since the Roster was last refreshed, and refreshes the Roster with each change. A
// member that joins and leaves quickly may be missed; a new incarnation is reported after the old
// one has been reported as left. Watch blocks until ctx ends or until the first error other than
// a lost connection, and returns it as an [*Error]. For a static group it only waits for ctx.
func (r *Roster) Watch(ctx context.Context, report func(Change)) error {
	if r.static {
		<-ctx.Done()
		return r.fail("watch", ctx.Err())
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

// follow reports the changes since the snapshot known, and later ones, until a call to the store
// fails. It returns that error and the last snapshot whose changes it has reported.
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

// reportChanges calls report for each member in which the two snapshots differ, members that left
// first. A new incarnation is reported as left and as joined.
func reportChanges(old, now *snapshot, report func(Change)) {
	missing := func(m Member, from *snapshot) bool {
		i, ok := from.names[m.Name]
		return !ok || from.members[i].Incarnation != m.Incarnation
	}
	for _, m := range old.members {
		if missing(m, now) {
			report(Change{Member: m})
		}
	}
	for _, m := range now.members {
		if missing(m, old) {
			report(Change{Member: m, Joined: true})
		}
	}
}
