package roster

import (
	"context"

	"github.com/tensorpipe-go/tensorpipe/agent/store"
)

// Refresh reads the list of a dynamic group again. [ErrRemoved] says that this
// member is not in it any more, though it has not left; the others are known then.
// A static group never changes.
func (r *Roster) Refresh(ctx context.Context) error {
	if r.static {
		return nil
	}
	_, err := r.refresh(ctx)
	return r.fail("refresh", err)
}

// refresh returns the view that it found, which may be older than one that another
// call found meanwhile.
func (r *Roster) refresh(ctx context.Context) (*view, error) {
	g, err := r.visit.look(ctx)
	if err != nil {
		return nil, err
	}
	found := newView(g.seq, g.members)
	r.mu.Lock()
	defer r.mu.Unlock()
	if found.seq > r.seen.seq {
		r.seen = found
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

// Watch reports who joins and leaves a dynamic group, beginning with what happened
// since the Roster was last refreshed, until ctx ends or something else does, which
// is the error that it returns. Who comes and goes quickly may be missed; one who
// comes back as another incarnation has left before. The Roster is refreshed with
// each change. Of a static group there is nothing to report.
func (r *Roster) Watch(ctx context.Context, report func(Change)) error {
	if r.static {
		<-ctx.Done()
		return r.fail("watch", ctx.Err())
	}
	known := r.view()
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		now, err := r.follow(ctx, known, report)
		if now.seq > known.seq {
			wait = firstPause // it has been of use
		}
		known = now
		if !trouble(err) || ctx.Err() != nil {
			return r.fail("watch", err)
		}
		if err := pause(ctx, wait); err != nil {
			return r.fail("watch", err)
		}
	}
}

// follow reports changes until the store does not answer any more.
func (r *Roster) follow(ctx context.Context, known *view, report func(Change)) (*view, error) {
	var w store.Watcher
	err := r.visit.persist(ctx, func() (err error) {
		w, err = r.visit.base.Watch(ctx, r.visit.gateKey())
		return err
	})
	if err != nil {
		return known, err
	}
	defer w.Close()
	for {
		now, err := r.refresh(ctx)
		if now != nil && now.seq > known.seq {
			compare(known, now, report)
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

// compare reports what has changed, those who left first.
func compare(old, now *view, report func(Change)) {
	missing := func(m Member, from *view) bool {
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
