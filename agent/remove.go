package agent

import (
	"context"
	"errors"
	"fmt"
)

// Remove takes a worker that has died off the list of a dynamic group. Until then the
// worker is a member, and gatherings of the whole group fail with its name, unless it is
// started again with Config.Replace.
//
// Remove returns when the worker is off the list, and waits for that until there is no
// pipe to it and none can be opened: one that answers stays, and so does one that was
// started again meanwhile. Give ctx an end, since a worker that only hangs may keep its
// pipe for as long as its process lives.
//
// The others learn of it from the store, as of a worker that leaves: their pipes to the
// removed one end, calls to it and gatherings with it that are under way fail with
// ErrUnreachable, later ones with ErrNoWorker, and its name and rank are free. One that
// lives after all, where only this worker could not reach it, finds its own calls to the
// others broken with ErrUnreachable, and ErrRemoved in later ones, in Workers and in
// gatherings. It may join again, as another incarnation.
//
// The error is an *Error. It matches ErrStatic for a static group, whose members stay for
// good; ErrNoWorker if there is no such worker, as when another one has removed it;
// ErrConfig for this worker itself, which leaves by Shutdown or Close; ErrUnreachable for
// one that answers, and takes no pipe of this one; ErrRemoved if this worker is no member
// itself; ErrClosed if it has shut down; or it is an error of ctx or of package store.
func (a *Agent) Remove(ctx context.Context, worker To) error {
	if err := a.remove(ctx, worker); err != nil {
		return &Error{Op: "remove", Worker: a.nameOf(worker), Err: err}
	}
	return nil
}

func (a *Agent) remove(ctx context.Context, worker To) error {
	if a.isStatic() {
		return ErrStatic
	}
	p, err := a.peer(ctx, worker)
	if err != nil {
		return err
	}
	if p == a.own {
		return fmt.Errorf("%w: a worker does not remove itself", ErrConfig)
	}
	defer leaveSlot(ctx)()
	for {
		alive, err := a.bury(ctx, p)
		if alive == nil {
			return err
		}
		if err := await(ctx, alive.down); err != nil {
			return fmt.Errorf("%s has not died: %w", p.info.Name, err)
		}
	}
}

// bury takes a worker off the list, unless it lives: then it returns the pipe to it.
func (a *Agent) bury(ctx context.Context, p *peer) (alive *conn, err error) {
	c, err := p.connect(ctx)
	for errors.Is(err, errCrossed) && ctx.Err() == nil {
		c, err = p.connect(ctx) // its own pipe has not come: it may have died since
	}
	switch {
	case err == nil:
		return c, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case a.isClosed():
		return nil, ErrClosed
	case answered(err):
		return nil, err
	}
	if err := a.refresh(ctx); err != nil { // who was removed itself removes nobody
		return nil, err
	}
	if c := p.conn.Load(); c != nil { // it has come back meanwhile
		return c, nil
	}
	if err := a.roster.Remove(ctx, p.info.Name, p.member.Incarnation); err != nil {
		return nil, err
	}
	return nil, a.refresh(ctx)
}

// answered reports whether it was the worker itself that has turned away a pipe, and not
// another one at its address, or one about to end.
func answered(err error) bool {
	if errors.Is(err, ErrRestarted) || errors.Is(err, ErrClosed) {
		return false
	}
	return errors.Is(err, ErrRefused)
}
