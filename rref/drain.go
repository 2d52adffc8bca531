package rref

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// Drain implements agent.Extension, for Shutdown. It releases the references of this worker to values
// of others, unless Options.KeepAtShutdown is set, and waits until everything about references that
// this worker has begun has ended. It logs the references that the application has not released: they
// may belong to a cycle of references between workers, which nothing else releases. In a static group all workers do this in rounds until no value has
// references of other workers, or nothing changes any more. The references that are left then are
// leaks: the error matches ErrLeak and lists them, unless Options.IgnoreLeaks is set.
func (r *Refs) Drain(ctx context.Context) error {
	r.mu.Lock()
	r.draining = true
	r.mu.Unlock()
	before := int64(-1)
	for {
		if err := r.awaitSettled(ctx); err != nil { // references that are being shared must not be released
			return err
		}
		r.releaseAll()
		if err := r.awaitSettled(ctx); err != nil {
			return err
		}
		if !r.agent.IsStatic() {
			return nil // the others go on
		}
		mine := int64(0)
		r.mu.Lock()
		for _, h := range r.holders {
			mine += int64(h.forks)
		}
		r.mu.Unlock()
		all, err := agent.AllGather(ctx, r.agent, mine)
		if err != nil {
			return err
		}
		sum := int64(0)
		for _, n := range all {
			sum += n
		}
		if sum == 0 || sum == before {
			return r.leaks()
		}
		before = sum
	}
}

// releaseAll releases all references to values of other workers for the application, and logs those
// that the application has not released.
func (r *Refs) releaseAll() {
	if r.options.KeepAtShutdown {
		return
	}
	var held []*core
	r.mu.Lock()
	for _, c := range r.cores {
		if c.uses > 0 && c.state != failed {
			held = append(held, c)
		}
	}
	slices.SortFunc(held, compareCores)
	for len(held) > 0 {
		n := slices.IndexFunc(held, func(c *core) bool { return c.owner != held[0].owner })
		if n < 0 {
			n = len(held)
		}
		r.logLater(r.log.Info, "references that were not released are released at shutdown, they may be part of a cycle",
			"owner", held[0].owner.Name, "references", n, "values", describeValues(held[:n]))
		held = held[n:]
	}
	for _, c := range r.cores {
		c.uses = 0
		c.releaseUnused()
	}
	r.unlock()
}

// maxDescribed bounds the values that a line of the log lists.
const maxDescribed = 16

// describeValues returns the labels of the values to which all refers, which is ordered by value, with
// their types as far as they are known and the number of references, such as "0.2 (*Model): 2, 0.5: 1".
func describeValues(all []*core) string {
	var parts []string
	for len(all) > 0 {
		text, typ, n := all[0].label.String(), "", 0
		for ; n < len(all) && all[n].label == all[0].label; n++ {
			typ = cmp.Or(typ, all[n].typ)
		}
		if typ != "" {
			text += " (" + typ + ")"
		}
		if len(parts) == maxDescribed {
			parts = append(parts, "and others")
			break
		}
		parts = append(parts, fmt.Sprintf("%s: %d", text, n))
		all = all[n:]
	}
	return strings.Join(parts, ", ")
}

// awaitSettled waits until this worker waits for no confirmation, has sent all deletions, and knows
// for all references that it has sent whether they have arrived.
func (r *Refs) awaitSettled(ctx context.Context) error {
	for {
		r.mu.Lock()
		r.askKept()
		r.askDue(time.Now())
		open := len(r.children)
		for _, o := range r.owners {
			if o.deleting {
				open++
			}
		}
		for _, c := range r.cores {
			if c.state == pending {
				open++
			}
		}
		changed := r.changed
		r.mu.Unlock()
		if open == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("rref: %d messages about references have not ended: %w", open, context.Cause(ctx))
		}
	}
}

// askKept has the receivers asked about references in kept replies: no call is repeated any more, and
// these messages end only with the agent. The caller holds r.mu.
func (r *Refs) askKept() {
	for id, ch := range r.children {
		if ch.kept && !ch.asking {
			ch.asking = true
			r.asks.now.Push(id)
		}
	}
}

// maxLeaksListed bounds the references that the error of a leak lists.
const maxLeaksListed = 100

// leaks returns nil, or an error that matches ErrLeak and lists the references of other workers to
// values of this one.
func (r *Refs) leaks() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lines []string
	for _, f := range r.forks {
		if f.holder != nil {
			lines = append(lines, fmt.Sprintf("\n\tvalue %v (%s): a reference of %s", f.value.label, f.value.stateName(), f.holder.Name))
		}
	}
	if len(lines) == 0 || r.options.IgnoreLeaks {
		return nil
	}
	slices.Sort(lines)
	if more := len(lines) - maxLeaksListed; more > 0 {
		lines = append(lines[:maxLeaksListed], fmt.Sprintf("\n\tand %d more", more))
	}
	return fmt.Errorf("%w:%s", ErrLeak, strings.Join(lines, ""))
}
