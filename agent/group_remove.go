package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
)

// Remove takes a dead worker off the member list of a dynamic group. Until then the worker is a
// member, and collective operations of the whole group fail with its name, unless it is restarted
// with Config.Replace.
//
// Remove returns when the worker is off the list. It blocks while there is a pipe to the worker or
// one can be opened: a worker that answers is not removed, nor is one that has restarted since. Use
// a ctx with a deadline: a worker that hangs may keep its pipe as long as its process lives.
//
// The other workers learn of the removal from the store, as when a worker leaves. They end their
// pipes to the removed worker. Pending calls to it and pending rounds with it fail with
// ErrUnreachable, later ones with ErrNoWorker, and its name and rank are free. If the removed
// worker is alive, and only this worker could not reach it, then at the removed worker pending
// calls fail with ErrUnreachable, and later calls, Workers and collective operations with
// ErrRemoved. It may join again, as another incarnation.
//
// The error is an *Error. It matches ErrStatic for a static group, whose members are fixed;
// ErrNoWorker if there is no such worker, as after another Remove; ErrConfig if worker is this
// worker itself, which leaves by Shutdown or Close; ErrUnreachable for a worker that answers but
// rejects the pipe; ErrRemoved if this worker is no member itself; ErrClosed if this agent is
// closed; or it is an error of ctx or of package store.
func (a *Agent) Remove(ctx context.Context, worker To) error {
	if err := a.remove(ctx, worker); err != nil {
		return &Error{Op: "remove", Worker: a.nameOf(worker), Err: err}
	}
	return nil
}

func (a *Agent) remove(ctx context.Context, worker To) error {
	if a.IsStatic() {
		return ErrStatic
	}
	p, err := a.peer(ctx, worker)
	if err != nil {
		return err
	}
	if p == a.selfPeer {
		return fmt.Errorf("%w: a worker does not remove itself", ErrConfig)
	}
	defer beginWait(ctx)()
	for {
		alive, err := a.removeIfDead(ctx, p)
		if alive == nil {
			return err
		}
		if err := await(ctx, alive.down); err != nil {
			return fmt.Errorf("the worker has not died: %w", err)
		}
	}
}

// removeIfDead removes the worker of p from the member list if no pipe to the worker can be opened,
// and returns nil and nil. If there is a pipe, or one can be opened, it returns that pipe and nil,
// and does not remove the worker. If the worker answered and rejected the pipe, it returns the
// error of the rejection and does not remove the worker. Other errors are ErrClosed, or those of
// ctx, of refresh or of the roster; after an error of refresh or of the roster the worker may have
// been removed.
func (a *Agent) removeIfDead(ctx context.Context, p *peer) (alive *conn, err error) {
	c, err := p.connect(ctx)
	for errors.Is(err, errSimultaneousOpen) && ctx.Err() == nil {
		c, err = p.connect(ctx) // the worker's own pipe was not opened: it may have died since
	}
	switch {
	case err == nil:
		return c, nil
	case ctx.Err() != nil:
		return nil, ctxerr.Cause(ctx)
	case a.isClosed():
		return nil, ErrClosed
	case isRejection(err):
		return nil, err
	}
	if err := a.refresh(ctx); err != nil { // a removed worker must not remove others
		return nil, err
	}
	if c := p.conn.Load(); c != nil { // it has opened a pipe since
		return c, nil
	}
	if err := a.roster.Remove(ctx, p.info.Name, p.member.Incarnation); err != nil {
		return nil, err
	}
	return nil, a.refresh(ctx)
}

// clientExtra is the extra data of a client in the member list.
const clientExtra = "client"

func (p *peer) isClient() bool { return string(p.member.Extra) == clientExtra }

// clientReconnectTime is the time in which a client that has lost its pipe may open another.
const clientReconnectTime = 2 * time.Second

// removeLostClient waits for clientReconnectTime after a pipe to a client has ended, and then
// removes the client from the group if no pipe to it can be opened within the handshake timeout.
// It returns early if the client leaves or the agent is closed; errors are logged.
func (a *Agent) removeLostClient(p *peer) {
	back := time.NewTimer(clientReconnectTime)
	defer back.Stop()
	select {
	case <-back.C:
	case <-p.ctx.Done(): // it has left, or this agent is closed
		return
	}
	ctx, cancel := context.WithTimeout(a.base, a.handshakeTimeout)
	defer cancel()
	if _, err := a.removeIfDead(ctx, p); err != nil && !a.isClosed() {
		a.log.Debug("client not removed", "client", p.info.Name, "error", err)
	}
}
