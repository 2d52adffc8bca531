package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/ctxerr"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/agent/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/internal/errtext"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// peer is one incarnation of another member of the group, or this worker itself.
type peer struct {
	agent     *Agent
	member    roster.Member
	info      WorkerInfo
	published wire.Member
	conn      atomic.Pointer[conn] // used by calls; nil while there is none
	onceCache onceCache            // results of its calls here
	ctx       context.Context      // ends, with the reason as its cause, when the peer has left or the agent is closed
	cancel    context.CancelCauseFunc

	// Guarded by the mutex of peerStates.
	listed   bool // it is on the member list
	state    peerState
	stateErr error // of peerLost

	mu             sync.Mutex
	attempt        *dialAttempt
	pendingAccepts int           // accepted pipes of the peer that are not attached yet
	acceptsDone    uint64        // accepted pipes of the peer that were attached or have failed
	changed        chan struct{} // see changedChan
}

// newPeer returns the peer for the member m of the group, without a pipe. The context of the peer
// ends when the agent is closed or the member leaves.
func (a *Agent) newPeer(m roster.Member) *peer {
	p := &peer{agent: a, member: m, info: WorkerInfo{Name: m.Name, Rank: m.Rank}}
	var err error
	if p.published, err = wire.DecodeMember(m.Extra); err != nil {
		a.log.Warn("the devices of a worker are unknown", "worker", m.Name, "error", err)
	}
	p.ctx, p.cancel = context.WithCancelCause(a.base)
	return p
}

// handleLeave ends the context of the peer, fails pending dials to it and aborts the pipe, because
// the worker has left the group or has another incarnation. Later calls to p fail with an error
// that matches ErrUnreachable and ErrNoWorker. handleLeave locks p.mu.
func (p *peer) handleLeave() {
	err := fmt.Errorf("%w: %s has left the group", ErrNoWorker, p.info.Name)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cancel(errtext.New(fmt.Sprintf("%v: the worker has left the group", ErrUnreachable), ErrUnreachable, err))
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
			cause := ctxerr.Cause(ctx) // which the store does not return
			text := strings.TrimSuffix(err.Error(), ": "+ctx.Err().Error())
			err = errtext.New(fmt.Sprintf("%v: %s", cause, text), cause, err)
		}
		return nil, err
	}
	c, err := p.connect(ctx)
	if err == nil || ctx.Err() != nil {
		return c, err
	}
	if a.IsStatic() {
		p.dialFailed(err)
		return nil, err
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
	p.dialFailed(err)
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
			return nil, ctxerr.Cause(ctx)
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
	if err := ctxerr.Cause(p.ctx); err != nil {
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
		return ctxerr.Cause(ctx)
	}
}

// changedChan returns a channel that is closed at the next change for which a goroutine may wait:
// of the pipe that calls use, when an accepted pipe was attached or has failed, or when the peer
// leaves. The caller holds p.mu.
func (p *peer) changedChan() <-chan struct{} {
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// notifyChanged closes the channel of changedChan, and so wakes the goroutines that wait for a
// change. The caller holds p.mu.
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
	t.err = p.dial(ctx, func(ctx context.Context, pp *pipe.Pipe) (err error) {
		t.conn, err = p.usePipe(ctx, pp)
		return err
	})
	if cause := ctxerr.Cause(p.ctx); t.err != nil && cause != nil {
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

// dialStagger is the time after which the next URL of a worker is dialled, too, while the dial of
// an address on the network goes on. See RFC 8305.
const dialStagger = 250 * time.Millisecond

// dial opens a pipe to the worker and passes it to use, which owns it. It dials the worker's URLs
// in their order and returns nil once use has returned nil for a pipe. It begins the next URL when
// an earlier one has failed, and also dialStagger after it has begun one that is not local, so that
// several dials may be in progress. It returns an error if no URL is left, if ctx ends or if the
// worker rejects a pipe; it goes on if another worker or incarnation answers at an address. The
// error matches ErrUnreachable. Before dial returns, it aborts the pipes that it has opened and not
// passed to use.
func (p *peer) dial(ctx context.Context, use func(context.Context, *pipe.Pipe) error) error {
	urls := p.member.URLs
	if len(urls) == 0 {
		return withKind(ErrUnreachable, errors.New("the worker has published no URL"))
	}
	type result struct {
		pipe *pipe.Pipe
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan result, len(urls))
	started, ended := 0, 0
	defer func() {
		cancel()
		for ; ended < started; ended++ {
			if r := <-results; r.err == nil {
				r.pipe.Abort(nil)
			}
		}
	}()
	stagger := time.NewTimer(0)
	defer stagger.Stop()
	var errs []error
	for ended < len(urls) {
		select {
		case <-stagger.C:
			if started < len(urls) {
				url := urls[started]
				started++
				go func() {
					pp, err := p.agent.pipes.Dial(ctx, url)
					results <- result{pp, err}
				}()
				if !p.agent.isLocal(url) { // its packets may be lost without an answer
					stagger.Reset(dialStagger)
				}
			}
		case r := <-results:
			ended++
			err := r.err
			if err == nil {
				if err = use(ctx, r.pipe); err == nil {
					return nil
				}
			}
			errs = append(errs, err)
			// Another worker may listen at an address that this machine has, too.
			if errors.Is(err, ErrRefused) && !errors.Is(err, ErrRestarted) || ctx.Err() != nil {
				return p.unreachable(errs)
			}
			stagger.Reset(0)
		}
	}
	return p.unreachable(errs)
}

// isLocal reports whether only processes of the machine that publishes url can reach url. It
// returns false if this worker does not have the transport of url.
func (a *Agent) isLocal(url string) bool {
	local, err := a.pipes.IsLocal(url)
	return err == nil && local
}

// unreachable returns the error for a worker that none of its URLs has reached. It matches
// ErrUnreachable and each of errs. If the worker publishes only loopback addresses although it may
// be on another machine, the text asks the user to set Listen there.
func (p *peer) unreachable(errs []error) error {
	err := errtext.Join(errs...)
	if p.agent.beyondMachine() && !slices.ContainsFunc(p.member.URLs, func(url string) bool { return !p.agent.isLocal(url) }) {
		err = fmt.Errorf("%s publishes only loopback addresses; set Listen there: %w", p.info.Name, err)
	}
	return withKind(ErrUnreachable, err)
}

// usePipe performs the handshake of the open pipe pp, attaches pp to the peer and returns it. If
// the peer rejects pp because the peer is opening a pipe itself, usePipe waits for the peer's pipe
// and returns that. If usePipe does not attach pp, it has aborted pp.
func (p *peer) usePipe(ctx context.Context, pp *pipe.Pipe) (*conn, error) {
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

// awaitPeerDial blocks until the pipe that the peer is opening has been attached, and returns it.
// The error matches errSimultaneousOpen if the peer's pipe fails or ctx ends first.
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

// releaseDial reverts claimDial after a failed handshake: tryAccept no longer prefers the attempt
// in progress.
func (p *peer) releaseDial() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.attempt != nil {
		p.attempt.claimed = false
	}
}

// tryAccept decides about a pipe that the peer opened. It returns nil if the pipe is accepted, and
// otherwise the reason to reject it. After nil the caller must call acceptDone, after setConn if it
// attaches the pipe.
//
// has reports that the peer has a pipe to this worker already. before is the pipe to the peer that
// was in use when this handshake began, or nil. The pipe is rejected if the peer has left, if has
// is true, or if the pipe in use is neither nil nor before.
//
// If both ends open a pipe at once, the pipe opened by the worker with the lower name is used,
// provided that the peer has answered it. If no pipe can be opened in that direction, because of a
// firewall for example, the other pipe is used.
func (p *peer) tryAccept(has bool, before *conn) *wire.Refusal {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := ctxerr.Cause(p.ctx); err != nil {
		return &wire.Refusal{Code: wire.RejectedNotMember, Text: err.Error()}
	}
	c := p.conn.Load()
	if has || c != nil && c != before || p.attempt != nil && p.attempt.claimed && p.agent.self.Name < p.info.Name {
		return &wire.Refusal{Code: wire.RejectedSimultaneous}
	}
	p.pendingAccepts++
	return nil
}

// acceptDone ends an acceptance that tryAccept began, after the accepted pipe has been attached or
// has failed, and wakes the goroutines that wait for that pipe.
func (p *peer) acceptDone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pendingAccepts--
	p.acceptsDone++
	p.notifyChanged()
}

// setConn attaches the open pipe pp, with the terms t of the peer, to the peer: calls use it from
// now on, a read loop is started, and the peer is present. It returns the new connection. It aborts
// the previous pipe, if any, because the other end would not have opened another pipe unless it had
// lost the previous one. If the peer has left, pp has ended or the agent is closed, it aborts pp
// and returns nil and the error.
func (p *peer) setConn(pp *pipe.Pipe, t peerTerms) (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := cmp.Or(ctxerr.Cause(p.ctx), pp.Err()); err != nil {
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
	p.agent.members.setByPipe(p, peerPresent, nil)
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
