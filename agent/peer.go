package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// peer is one incarnation of another member of the group, or this worker itself.
type peer struct {
	agent     *Agent
	member    roster.Member
	info      WorkerInfo
	conn      atomic.Pointer[conn] // used by calls; nil while there is none
	onceCache onceCache            // results of its calls here
	ctx       context.Context      // ends, with the reason as its cause, when the peer has left or the agent is closed
	cancel    context.CancelCauseFunc

	mu             sync.Mutex
	attempt        *dialAttempt
	pendingAccepts int           // accepted pipes of the peer that are not attached yet
	acceptsDone    uint64        // accepted pipes of the peer that were attached or have failed
	changed        chan struct{} // see changedChan
}

// newPeer returns the peer for a member of the group, without a pipe.
func (a *Agent) newPeer(m roster.Member) *peer {
	p := &peer{agent: a, member: m, info: WorkerInfo{Name: m.Name, Rank: m.Rank}}
	p.ctx, p.cancel = context.WithCancelCause(a.base)
	return p
}

// handleLeave fails pending dials to the worker and aborts the pipe, because the worker has left
// the group or has another incarnation. Later calls to p fail with ErrUnreachable and
// ErrNoWorker.
func (p *peer) handleLeave() {
	err := fmt.Errorf("%w: %s has left the group", ErrNoWorker, p.info.Name)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cancel(withKind(ErrUnreachable, err))
	if c := p.conn.Load(); c != nil {
		c.pipe.Abort(err)
	}
	p.notifyChanged()
}

// dialAttempt is one attempt to open a pipe, for which several callers may wait.
type dialAttempt struct {
	done chan struct{} // closed when conn and err are set
	conn *conn
	err  error

	claimed bool // see claimDial
}

// connTo returns the pipe to the worker that to addresses. If there is none it opens one, within
// ctx and the limit of the call. The error matches ErrNoWorker, ErrUnreachable, ErrRemoved or
// ErrClosed, or is the cause of ctx, a *TimeoutError or an error of the store.
func (a *Agent) connTo(ctx context.Context, call *call, to To) (*conn, error) {
	if p := a.peers.find(to); p != nil {
		if c := p.conn.Load(); c != nil {
			return c, nil
		}
	}
	defer beginWait(ctx)()
	limited := call.withLimit(ctx)
	defer limited.finish()
	ctx = limited
	defer a.outsideCalls.add(call, CallConnecting)()
	p, err := a.peer(ctx, to)
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = withKind(context.Cause(ctx), err) // the store does not return the cause
		}
		return nil, err
	}
	c, err := p.connect(ctx)
	if err == nil || ctx.Err() != nil || a.isStatic() {
		return c, err
	}
	// The worker may have restarted, which this worker has not learned yet; or this worker
	// may have been removed from the group.
	missing := a.refresh(ctx)
	if now := a.peers.find(to); missing == nil && now != nil && now != p {
		return now.connect(ctx)
	}
	if errors.Is(missing, ErrRemoved) {
		err = withKind(ErrRemoved, err)
	}
	return nil, err
}

// connect returns the pipe to the peer, and opens one if there is none. Concurrent callers wait
// for one attempt, which goes on if ctx ends. The error matches ErrUnreachable or ErrClosed, or
// is the cause of ctx.
func (p *peer) connect(ctx context.Context) (*conn, error) {
	for {
		p.mu.Lock()
		if c := p.conn.Load(); c != nil {
			p.mu.Unlock()
			return c, nil
		}
		if p.pendingAccepts > 0 && p.ctx.Err() == nil {
			changed := p.changedChan()
			p.mu.Unlock()
			if err := await(ctx, changed); err != nil {
				return nil, err
			}
			continue
		}
		t, err := p.startDial()
		changed := p.changedChan()
		p.mu.Unlock()
		if err != nil {
			return nil, err
		}
		select {
		case <-t.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-changed:
		}
		select {
		case <-t.done:
			return t.conn, t.err
		default: // the peer may have opened a pipe while this attempt goes on
		}
	}
}

// startDial returns the attempt in progress, or starts one on another goroutine. The error is the
// reason for which the peer cannot be called any more, or ErrClosed. The caller holds mu.
func (p *peer) startDial() (*dialAttempt, error) {
	if p.attempt != nil {
		return p.attempt, nil
	}
	if err := context.Cause(p.ctx); err != nil {
		return nil, err
	}
	t := &dialAttempt{done: make(chan struct{})}
	if !p.agent.spawn(func() { p.runDial(t) }) {
		return nil, ErrClosed
	}
	p.attempt = t
	return t, nil
}

// await waits for done and returns nil, or the cause of ctx if that ends first.
func await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// changedChan returns a channel that is closed at the next change of conn or pendingAccepts. The
// caller holds mu.
func (p *peer) changedChan() <-chan struct{} {
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// notifyChanged wakes the goroutines that wait for a change. The caller holds mu.
func (p *peer) notifyChanged() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// runDial opens the pipe for the attempt t within the handshake timeout, and completes t with the
// pipe or the error. If the peer has opened a pipe since, that one is the result.
func (p *peer) runDial(t *dialAttempt) {
	ctx, cancel := context.WithTimeout(p.ctx, p.agent.handshakeTimeout)
	defer cancel()
	t.conn, t.err = p.dial(ctx)
	if cause := context.Cause(p.ctx); t.err != nil && cause != nil {
		t.err = cause
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attempt = nil
	if c := p.conn.Load(); t.err != nil && c != nil {
		t.conn, t.err = c, nil // the peer has opened a pipe since
	}
	close(t.done)
}

// dial opens a pipe. It tries the worker's URLs in order, until one succeeds, the worker rejects
// the pipe or ctx ends. The error matches ErrUnreachable.
func (p *peer) dial(ctx context.Context) (*conn, error) {
	if len(p.member.URLs) == 0 {
		return nil, withKind(ErrUnreachable, errors.New("the worker has published no URL"))
	}
	var errs []error
	for _, url := range p.member.URLs {
		c, err := p.dialURL(ctx, url)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
		if errors.Is(err, ErrRefused) || ctx.Err() != nil {
			break
		}
	}
	return nil, withKind(ErrUnreachable, errors.Join(errs...))
}

// dialURL opens a pipe at one URL, performs the handshake and attaches the pipe to the peer. If
// the peer rejects it because it is opening a pipe itself, dialURL waits for that one and returns
// it. A pipe of dialURL that is not attached is aborted.
func (p *peer) dialURL(ctx context.Context, url string) (*conn, error) {
	pp, err := p.agent.pipes.Dial(ctx, url)
	if err != nil {
		return nil, err
	}
	t, err := p.agent.dialHandshake(ctx, pp, p)
	if err == nil {
		return p.setConn(pp, t)
	}
	p.releaseDial()
	if errors.Is(err, errSimultaneousOpen) {
		pp.Abort(nil)
		return p.awaitPeerDial(ctx)
	}
	pp.Abort(err)
	return nil, err
}

// errSimultaneousOpen is the rejection of a pipe because the peer is opening one, which will be
// used.
var errSimultaneousOpen = errors.New("the other end is opening a pipe of its own")

// awaitPeerDial waits for the pipe that the peer is opening. The error is errSimultaneousOpen if
// that fails or ctx ends.
func (p *peer) awaitPeerDial(ctx context.Context) (*conn, error) {
	p.mu.Lock()
	before := p.acceptsDone
	p.mu.Unlock()
	for {
		p.mu.Lock()
		c, changed := p.conn.Load(), p.changedChan()
		failed := p.acceptsDone > before && p.pendingAccepts == 0
		p.mu.Unlock()
		if c != nil {
			return c, nil
		}
		if failed || await(ctx, changed) != nil {
			return nil, fmt.Errorf("%w, which failed", errSimultaneousOpen)
		}
	}
}

// claimDial reports whether there already is a pipe to the peer, or a pipe that the peer opened
// and that is about to be attached. If there is none, it marks the attempt in progress as claimed:
// until releaseDial, tryAccept may prefer it over a pipe that the peer opens. dialHandshake calls
// claimDial after the peer has answered.
func (p *peer) claimDial() (has bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	has = p.conn.Load() != nil || p.pendingAccepts > 0
	if p.attempt != nil {
		p.attempt.claimed = !has
	}
	return has
}

// releaseDial reverts claimDial, after a handshake that failed.
func (p *peer) releaseDial() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.attempt != nil {
		p.attempt.claimed = false
	}
}

// tryAccept decides about a pipe that the peer opened. It returns nil if the pipe is accepted, and
// otherwise the reason to reject it. After nil the caller must call acceptDone, after setConn if
// it attaches the pipe.
//
// has reports that the peer has a pipe to this worker already. before is the pipe to the peer that
// was in use when this handshake began, or nil. The pipe is rejected if the peer has left, if has
// is set, or if the pipe in use is neither nil nor before.
//
// If both ends open a pipe at once, the one opened by the worker with the lower name is used,
// provided that the peer has answered it: if no pipe can be opened in that direction, because of a
// firewall for example, the other one is used.
func (p *peer) tryAccept(has bool, before *conn) *wire.Refusal {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := context.Cause(p.ctx); err != nil {
		return &wire.Refusal{Code: wire.RejectedNotMember, Text: err.Error()}
	}
	c := p.conn.Load()
	if has || c != nil && c != before || p.attempt != nil && p.attempt.claimed && p.agent.self.Name < p.info.Name {
		return &wire.Refusal{Code: wire.RejectedSimultaneous}
	}
	p.pendingAccepts++
	return nil
}

// acceptDone ends an acceptance that tryAccept began, after the pipe has been attached or has
// failed, and wakes the goroutines that wait for it.
func (p *peer) acceptDone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pendingAccepts--
	p.acceptsDone++
	p.notifyChanged()
}

// setConn makes an open pipe the one that calls use, and starts reading from it. It aborts the
// previous pipe, which the other end has lost: otherwise it would not have opened another. If the
// peer has left, pp has ended or the agent is closed, it aborts pp and returns the error.
func (p *peer) setConn(pp *pipe.Pipe, t peerTerms) (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := cmp.Or(context.Cause(p.ctx), pp.Err()); err != nil {
		pp.Abort(err)
		return nil, err
	}
	c := p.agent.newConn(pp, p, t)
	if !c.startReading() {
		p.agent.conns.Delete(c)
		pp.Abort(ErrClosed)
		return nil, ErrClosed
	}
	if old := p.conn.Swap(c); old != nil {
		old.pipe.Abort(errReplaced)
	}
	p.notifyChanged()
	return c, nil
}

// errReplaced ends a pipe that the other end has replaced by a new one.
var errReplaced = fmt.Errorf("%w: replaced by another pipe", pipe.ErrClosed)

// clearConn removes c as the pipe that calls use, if it still is, so that the next call opens
// another one. It does not close c.
func (p *peer) clearConn(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn.CompareAndSwap(c, nil) {
		p.notifyChanged()
	}
}
