package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tensorpipe-go/tensorpipe/agent/internal/roster"
	"github.com/tensorpipe-go/tensorpipe/pipe"
)

// peer is one incarnation of another member of the group, or of this worker itself.
type peer struct {
	agent  *Agent
	member roster.Member
	info   WorkerInfo
	conn   atomic.Pointer[conn] // that calls take, while it is up
	memory memory               // of what it called here
	life   context.Context      // ends, with the reason, when it has left or the agent is closed
	end    context.CancelCauseFunc

	mu        sync.Mutex
	attempt   *attempt
	accepting int           // pipes of the peer that are not attached yet
	accepted  uint64        // pipes of the peer of which it is known what became of them
	changed   chan struct{} // see changes
}

func (a *Agent) makePeer(m roster.Member) *peer {
	p := &peer{agent: a, member: m, info: WorkerInfo{Name: m.Name, Rank: m.Rank}}
	p.life, p.end = context.WithCancelCause(a.base)
	return p
}

// leave notes that the worker has left the group, or is another incarnation by now. What
// was being opened comes to nothing.
func (p *peer) leave() {
	err := fmt.Errorf("%w: %s has left the group", ErrNoWorker, p.info.Name)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end(marked(ErrUnreachable, err))
	if c := p.conn.Load(); c != nil {
		c.pipe.Abort(err)
	}
	p.change()
}

// attempt is the opening of a pipe, for which several callers may wait.
type attempt struct {
	done chan struct{} // closed when conn and err are set
	conn *conn
	err  error

	claims bool // see claim
}

// connTo is the pipe to a worker, opened if it is not there and the call has the time.
func (a *Agent) connTo(ctx context.Context, call *call, to To) (*conn, error) {
	if p := a.peers.find(to); p != nil {
		if c := p.conn.Load(); c != nil {
			return c, nil
		}
	}
	defer leaveSlot(ctx)()
	ctx, cancel := call.bound(ctx)
	defer cancel(nil)
	defer a.aside.enter(call, CallConnecting)()
	p, err := a.peer(ctx, to)
	if err != nil {
		return nil, because(ctx, err)
	}
	c, err := p.connect(ctx)
	if err == nil || ctx.Err() != nil || a.isStatic() {
		return c, err
	}
	// It may have started again, which the group knows and this worker does not yet. Or
	// this worker is not in the group any more.
	missing := a.refresh(ctx)
	if now := a.peers.find(to); missing == nil && now != nil && now != p {
		return now.connect(ctx)
	}
	if errors.Is(missing, ErrRemoved) {
		err = marked(ErrRemoved, err)
	}
	return nil, err
}

// because is err with the cause with which ctx has ended, if that is what err tells of: the
// store knows nothing of the limit of a call.
func because(ctx context.Context, err error) error {
	if ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	return marked(context.Cause(ctx), err)
}

// connect waits for the pipe, which one caller opens for all.
func (p *peer) connect(ctx context.Context) (*conn, error) {
	for {
		p.mu.Lock()
		if c := p.conn.Load(); c != nil {
			p.mu.Unlock()
			return c, nil
		}
		if p.accepting > 0 && p.life.Err() == nil {
			changed := p.changes()
			p.mu.Unlock()
			if err := await(ctx, changed); err != nil {
				return nil, err
			}
			continue
		}
		t, err := p.begin()
		changed := p.changes()
		p.mu.Unlock()
		if err != nil {
			return nil, err
		}
		over, err := t.await(ctx, changed)
		if err != nil {
			return nil, err
		}
		if over {
			return t.conn, t.err
		}
	}
}

// await waits until the attempt is over, or something else has changed: the peer may have
// opened a pipe while this end tries in vain.
func (t *attempt) await(ctx context.Context, changed <-chan struct{}) (over bool, err error) {
	select {
	case <-t.done:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-changed:
	}
	select {
	case <-t.done:
		return true, nil
	default:
		return false, nil
	}
}

// begin is the attempt that is under way, or a new one. The caller holds mu.
func (p *peer) begin() (*attempt, error) {
	if p.attempt != nil {
		return p.attempt, nil
	}
	if err := context.Cause(p.life); err != nil {
		return nil, err
	}
	t := &attempt{done: make(chan struct{})}
	if !p.agent.spawn(func() { p.open(t) }) {
		return nil, ErrClosed
	}
	p.attempt = t
	return t, nil
}

func await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// changes is closed at the next change of conn or accepting. The caller holds mu.
func (p *peer) changes() <-chan struct{} {
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.changed
}

// change tells those who wait for one. The caller holds mu.
func (p *peer) change() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// open opens the pipe for an attempt.
func (p *peer) open(t *attempt) {
	ctx, cancel := context.WithTimeout(p.life, p.agent.handshakeTimeout)
	defer cancel()
	t.conn, t.err = p.dial(ctx)
	if cause := context.Cause(p.life); t.err != nil && cause != nil {
		t.err = cause
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attempt = nil
	if c := p.conn.Load(); t.err != nil && c != nil {
		t.conn, t.err = c, nil // the other end was faster
	}
	close(t.done)
}

// dial tries the addresses of the worker.
func (p *peer) dial(ctx context.Context) (*conn, error) {
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
	return nil, marked(ErrUnreachable, errors.Join(errs...))
}

func (p *peer) dialURL(ctx context.Context, url string) (*conn, error) {
	line, err := p.agent.pipes.Dial(ctx, url)
	if err != nil {
		return nil, err
	}
	t, err := p.agent.introduce(ctx, line, p)
	if err == nil {
		return p.attach(line, t)
	}
	p.unclaim()
	if errors.Is(err, errCrossed) {
		line.Abort(nil)
		return p.awaitCrossed(ctx)
	}
	line.Abort(err)
	return nil, err
}

// errCrossed says that the peer is opening a pipe to us, too, and that that is the one
// to take.
var errCrossed = errors.New("the other end is opening a pipe of its own")

// awaitCrossed waits for the pipe that the peer opens.
func (p *peer) awaitCrossed(ctx context.Context) (*conn, error) {
	p.mu.Lock()
	before := p.accepted
	p.mu.Unlock()
	for {
		p.mu.Lock()
		c, changed := p.conn.Load(), p.changes()
		failed := p.accepted > before && p.accepting == 0
		p.mu.Unlock()
		if c != nil {
			return c, nil
		}
		if failed || await(ctx, changed) != nil {
			return nil, fmt.Errorf("%w, which did not come", errCrossed)
		}
	}
}

// claim reports whether there is a pipe, or about to be one that the peer opened, for the
// peer that has answered the greeting of this end. If there is none the peer takes the one
// of this end, and accept reckons with that.
func (p *peer) claim() (has bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	has = p.conn.Load() != nil || p.accepting > 0
	if p.attempt != nil {
		p.attempt.claims = !has
	}
	return has
}

// unclaim takes back claim: that pipe came to nothing.
func (p *peer) unclaim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.attempt != nil {
		p.attempt.claims = false
	}
}

// accept says why a pipe that the peer opened is not taken, if so. Of two that are opened at once
// that of the lower name is taken, once the peer has answered it: where none can be opened
// that way, because a firewall drops it, the other one is as good; and none where the peer has one already, which it
// has learned meanwhile: as it says itself, or because there is one now that was not
// there before it was asked. Who gets nil calls unaccept, behind attach if it does.
func (p *peer) accept(has bool, before *conn) *refusal {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := context.Cause(p.life); err != nil {
		return &refusal{refusedStranger, err.Error()}
	}
	c := p.conn.Load()
	if has || c != nil && c != before || p.attempt != nil && p.attempt.claims && p.agent.self.Name < p.info.Name {
		return &refusal{Code: refusedCrossed}
	}
	p.accepting++
	return nil
}

// unaccept takes back accept.
func (p *peer) unaccept() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accepting--
	p.accepted++
	p.change()
}

// attach makes an open pipe the one that calls take. One that was there before is
// lost to the other end, which would not have opened another. If either end has gone
// meanwhile the pipe ends.
func (p *peer) attach(line *pipe.Pipe, t terms) (*conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := cmp.Or(context.Cause(p.life), line.Err()); err != nil {
		line.Abort(err)
		return nil, err
	}
	c := p.agent.newConn(line, p, t)
	if !c.read() {
		p.agent.conns.Delete(c)
		line.Abort(ErrClosed)
		return nil, ErrClosed
	}
	if old := p.conn.Swap(c); old != nil {
		old.pipe.Abort(errReplaced)
	}
	p.change()
	return c, nil
}

// errReplaced ends a pipe in place of which the other end has opened another.
var errReplaced = fmt.Errorf("%w: replaced by another pipe", pipe.ErrClosed)

// detach has the next call open another pipe.
func (p *peer) detach(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn.CompareAndSwap(c, nil) {
		p.change()
	}
}
