package rref

import (
	"context"
	"fmt"

	"github.com/tensorpipe-go/tensorpipe/agent"
)

// Drain implements agent.Extension, for Shutdown. It releases the references of this worker to values
// of others, unless Options.KeepAtShutdown is set, and waits until everything about references that
// this worker has begun has ended. In a static group all workers do this in rounds until no value has
// references of other workers, or nothing changes any more. The references that are left then are
// leaks: the error matches ErrLeak and lists them, unless Options.IgnoreLeaks is set.
func (r *Refs) Drain(ctx context.Context) error {
	close(r.draining)
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

// releaseAll releases all references to values of other workers for the application.
func (r *Refs) releaseAll() {
	if r.options.KeepAtShutdown {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.cores {
		c.uses = 0
		c.releaseUnused()
	}
}

// awaitSettled waits until this worker waits for no confirmation, has sent all deletions, and knows
// for all references that it has sent whether they have arrived.
func (r *Refs) awaitSettled(ctx context.Context) error {
	for {
		r.mu.Lock()
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

// leaks returns nil, or an error that matches ErrLeak and lists the references of other workers to
// values of this one.
func (r *Refs) leaks() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := ""
	for _, f := range r.forks {
		if f.holder != nil {
			text += fmt.Sprintf("\n\tvalue %v (%s): a reference of %s", f.value.label, f.value.stateName(), f.holder.Name)
		}
	}
	if text == "" || r.options.IgnoreLeaks {
		return nil
	}
	return fmt.Errorf("%w:%s", ErrLeak, text)
}
