package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// accept accepts pipes of other workers until the listener or the agent is closed, and performs
// the handshake of each on another goroutine.
func (a *Agent) accept() {
	for {
		pp, err := a.listener.Accept(a.base)
		if err != nil {
			return // the listener is closed
		}
		ctx, cancel := context.WithCancelCause(a.base)
		a.handshakes.start(pendingHandshake{pp, cancel})
		if !a.spawn(func() { a.serveHandshake(ctx, pp); cancel(nil) }) {
			cancel(ErrClosed)
			pp.Abort(ErrClosed)
			return
		}
	}
}

// serveHandshake performs the handshake of the pipe pp, which another worker or this one opened,
// and attaches pp to the peer that opened it. If the handshake fails, serveHandshake logs that,
// waits until the other end has read the reason and closes its end, and aborts the pipe. It does
// the same, without a log, after the status was sent to a client that is no member, and if this
// worker is opening a pipe to the peer itself. It takes at most the handshake timeout and ends when
// ctx ends.
func (a *Agent) serveHandshake(ctx context.Context, pp *pipe.Pipe) {
	defer a.handshakes.finish(pp)
	ctx, cancel := context.WithTimeout(ctx, a.handshakeTimeout)
	defer cancel()
	p, t, err := a.acceptHandshake(ctx, pp)
	if err != nil {
		if !errors.Is(err, errSimultaneousOpen) && err != errInspected {
			a.log.Warn("worker rejected", "address", pp.RemoteAddr(), "error", err)
			a.stats.rejectedPipes.Add(1)
		}
		if _, next := pp.Next(ctx); next == nil { // the peer closes the pipe once it has read the reason
			err = errtext.Join(err, ErrProtocol) // a message after the rejection
		}
		pp.Abort(err)
		return
	}
	if p == a.selfPeer {
		if c := a.newConn(pp, p, t); !c.startReading() {
			a.conns.Delete(c)
			pp.Abort(ErrClosed)
		}
		return
	}
	if _, err := p.setConn(pp, t); err != nil {
		a.log.Debug("pipe not attached", "worker", p.info.Name, "error", err)
	}
	p.acceptDone()
}

// handshakeTable holds the pipes whose peers have not proved yet that they know the token, or only
// ask for the status. Any process that reaches the address can open pipes and send nothing. If
// there are too many, the oldest is evicted, since a member completes its handshake in a few round
// trips.
type handshakeTable struct {
	max int
	mu  sync.Mutex
	all []pendingHandshake // oldest first
}

type pendingHandshake struct {
	pp     *pipe.Pipe
	cancel context.CancelCauseFunc // of the handshake's context
}

// errHandshakeEvicted ends an evicted pipe.
var errHandshakeEvicted = fmt.Errorf("%w: too many pipes opened before this one proved that it knows the token", ErrRefused)

// start adds a handshake. If there are more than max it evicts the oldest: it cancels that
// handshake and aborts its pipe.
func (t *handshakeTable) start(g pendingHandshake) {
	t.mu.Lock()
	t.all = append(t.all, g)
	var oldest pendingHandshake
	if len(t.all) > t.max {
		oldest = t.all[0]
		t.all = slices.Delete(t.all, 0, 1)
	}
	t.mu.Unlock()
	if oldest.pp != nil {
		oldest.cancel(errHandshakeEvicted)
		oldest.pp.Abort(errHandshakeEvicted)
	}
}

// finish removes a pipe whose peer has proved that it knows the token, or whose handshake has
// ended, and returns true. It returns false if the pipe is not in the table, because it was
// evicted or has been removed.
func (t *handshakeTable) finish(pp *pipe.Pipe) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := len(t.all)
	t.all = slices.DeleteFunc(t.all, func(g pendingHandshake) bool { return g.pp == pp })
	return len(t.all) < before
}
