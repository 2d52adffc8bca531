package rref

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// Metrics implements agent.Extension. "owner_rrefs" is the number of values of this worker, "forks"
// that of the references of other workers to them and of messages that carry one, "user_rrefs" that
// of the references of this worker to values of others, "pending_users" how many of these are not
// confirmed, and "pending_children" the references that were sent and are not accepted.
func (r *Refs) Metrics() map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := map[string]int64{
		"owner_rrefs": int64(len(r.values)), "forks": int64(len(r.forks)),
		"pending_children": int64(len(r.children)), "user_rrefs": int64(len(r.cores)),
		"pending_users": 0,
	}
	for _, c := range r.cores {
		if c.state == pending {
			m["pending_users"]++
		}
	}
	return m
}

// Dump implements agent.Extension. It writes a line for each value of this worker with its type or
// state, its age, and the workers that have references to it, each with their number; for each
// reference of this worker to a value of another one; and for each lease. It also writes how many
// references were sent and are not accepted, and how many requests wait for a reference that is not
// known. Equal states give equal texts. The error is that of w.
func (r *Refs) Dump(w io.Writer) error {
	now, names := time.Now(), r.names()
	var b bytes.Buffer
	r.mu.Lock()
	r.dumpValues(&b, now)
	r.dumpReferences(&b, now)
	r.dumpLeases(&b, now)
	r.dumpWaiting(&b, names)
	r.mu.Unlock()
	_, err := b.WriteTo(w)
	return err
}

// dumpValues writes the values of this worker by label. The caller holds r.mu.
func (r *Refs) dumpValues(w io.Writer, now time.Time) {
	users := map[*value]map[string]int{} // the number of references by the name of their holder
	for _, f := range r.forks {
		name := ""
		switch {
		case f.holder != nil:
			name = f.holder.Name
		case f.gone:
			name = "messages"
		default:
			continue // an id of a reference of this worker, see localID
		}
		if users[f.value] == nil {
			users[f.value] = map[string]int{}
		}
		users[f.value][name]++
	}
	fmt.Fprintf(w, "values: %d\n", len(r.values))
	for _, v := range slices.SortedFunc(maps.Keys(r.values), func(x, y *value) int { return x.label.compare(y.label) }) {
		fmt.Fprintf(w, "  %v: %s, %v", v.label, v.stateName(), age(now, v.since))
		if v.locals > 0 {
			fmt.Fprintf(w, ", %d here", v.locals)
		}
		for _, name := range slices.Sorted(maps.Keys(users[v])) {
			fmt.Fprintf(w, ", %d of %s", users[v][name], name)
		}
		fmt.Fprintln(w)
	}
}

// dumpReferences writes the references of this worker by owner and label. The caller holds r.mu.
func (r *Refs) dumpReferences(w io.Writer, now time.Time) {
	fmt.Fprintf(w, "references: %d\n", len(r.cores))
	for _, c := range slices.SortedFunc(maps.Values(r.cores), compareCores) {
		fmt.Fprintf(w, "  %v to value %v on %s: %v, %v", c.forkLabel, c.label, c.owner.Name, c.state, age(now, c.since))
		switch {
		case c.err != nil:
			fmt.Fprintf(w, ", %s", oneLine(c.err))
		case c.owner.lease.silent:
			fmt.Fprint(w, ", the owner does not answer")
		}
		fmt.Fprintln(w)
	}
}

// compareCores compares two references of this worker by owner, value and reference.
func compareCores(x, y *core) int {
	return cmp.Or(strings.Compare(x.owner.Name, y.owner.Name), bytes.Compare(x.owner.Incarnation[:], y.owner.Incarnation[:]),
		x.label.compare(y.label), x.forkLabel.compare(y.forkLabel), bytes.Compare(x.id[:], y.id[:]))
}

// dumpLeases writes the leases that this worker has granted to users, and those that owners have
// granted to it. The caller holds r.mu.
func (r *Refs) dumpLeases(w io.Writer, now time.Time) {
	fmt.Fprintf(w, "leases of users: %d\n", len(r.holders))
	for _, h := range slices.SortedFunc(maps.Values(r.holders), func(x, y *holder) int { return cmp.Compare(x.epoch, y.epoch) }) {
		heard := age(now, h.heard)
		if h.spoke.Load() {
			heard = 0
		}
		fmt.Fprintf(w, "  %s: epoch %d, renewed %v ago, %s\n", h.Name, h.epoch, heard, plural(h.forks, "reference"))
	}
	fmt.Fprintf(w, "leases at owners: %d\n", len(r.owners))
	for _, o := range slices.SortedFunc(maps.Values(r.owners), func(x, y *ownerState) int {
		return cmp.Or(strings.Compare(x.Name, y.Name), bytes.Compare(x.Incarnation[:], y.Incarnation[:]))
	}) {
		lease := "not granted"
		if o.lease.epoch != 0 {
			lease = fmt.Sprintf("epoch %d, renewed %v ago", o.lease.epoch, age(now, o.lease.renewed))
		}
		if o.lease.silent {
			lease += ", the owner does not answer"
		}
		fmt.Fprintf(w, "  %s: %s, %s\n", o.Name, lease, plural(o.cores, "reference"))
	}
}

// dumpWaiting writes the references that were sent and are not accepted, by receiver and value, and the
// number of requests that wait for a reference, by worker, with the names of incarnations. The caller
// holds r.mu.
func (r *Refs) dumpWaiting(w io.Writer, names map[[16]byte]string) {
	children := map[string]int{}
	for _, ch := range r.children {
		text := ""
		if ch.parent != nil {
			text = fmt.Sprintf("value %v on %s to %s", ch.parent.label, ch.parent.owner.Name, ch.to.Name)
		} else {
			text = fmt.Sprintf("value %v to %s", ch.fork.value.label, ch.to.Name)
		}
		children[text]++
	}
	fmt.Fprintf(w, "sent and not accepted: %d\n", len(r.children))
	for _, text := range slices.Sorted(maps.Keys(children)) {
		fmt.Fprintf(w, "  %s: %d\n", text, children[text])
	}
	awaited, all := map[string]int{}, 0
	for incarnation, n := range r.awaitedOf {
		awaited[cmp.Or(names[incarnation], "others")] += n
		all += n
	}
	fmt.Fprintf(w, "requests that wait for a reference: %d\n", all)
	for _, name := range slices.Sorted(maps.Keys(awaited)) {
		fmt.Fprintf(w, "  %s: %d\n", name, awaited[name])
	}
}

// names returns the names of the workers that this one knows, by incarnation.
func (r *Refs) names() map[[16]byte]string {
	ended, end := context.WithCancel(context.Background())
	end() // nothing is read from the store
	names := map[[16]byte]string{}
	for _, w := range r.agent.WorkerInfos() {
		if incarnation, err := r.agent.IncarnationOf(ended, agent.To(w.Name)); err == nil {
			names[incarnation] = w.Name
		}
	}
	return names
}

// compare compares two labels by worker and number.
func (l Label) compare(m Label) int {
	return cmp.Or(cmp.Compare(l.CreatedOn, m.CreatedOn), cmp.Compare(l.Local, m.Local))
}

// age returns the time from since to now in milliseconds.
func age(now, since time.Time) time.Duration { return now.Sub(since).Round(time.Millisecond) }

// oneLine returns the text of err, with which a reference has failed, in one line, without the name of
// the reference.
func oneLine(err error) string {
	var creation *CreationError
	if errors.As(err, &creation) {
		err = creation.Err
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
