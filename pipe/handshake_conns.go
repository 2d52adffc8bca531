package pipe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// handshakeConns holds the connections of a pipe until the pipe is built. It closes
// them when ctx ends, which ends blocked reads and writes of the handshake.
type handshakeConns struct {
	ctx   context.Context
	stop  func() bool // stops watching ctx; returns false if ctx has ended
	phase phase       // written and read by the goroutine of the handshake

	mu    sync.Mutex
	conns []transport.Conn
	ended bool
}

func newHandshakeConns(ctx context.Context) *handshakeConns {
	hc := &handshakeConns{ctx: ctx}
	hc.stop = context.AfterFunc(ctx, hc.closeAll)
	return hc
}

// add makes hc the owner of conn. If ctx has ended it closes conn and returns the cause of ctx.
func (hc *handshakeConns) add(conn transport.Conn) error {
	hc.mu.Lock()
	defer hc.mu.Unlock()
	if hc.ended {
		conn.Close()
		return context.Cause(hc.ctx)
	}
	hc.conns = append(hc.conns, conn)
	return nil
}

// dial opens a connection to addr over t and makes hc its owner. ctx of hc bounds the call.
func (hc *handshakeConns) dial(t transport.Transport, addr string) (transport.Conn, error) {
	conn, err := t.Dial(hc.ctx, addr)
	if err != nil {
		if end, ok := hc.ctx.Deadline(); ok && !time.Now().Before(end) {
			<-hc.ctx.Done() // a transport may notice the deadline before ctx does
		}
		return nil, err
	}
	return conn, hc.add(conn)
}

// detach passes the connections to the pipe: hc no longer closes them. If ctx has ended, the
// connections are closed already, and detach returns the cause of ctx.
func (hc *handshakeConns) detach() error {
	hc.stop()
	hc.mu.Lock()
	defer hc.mu.Unlock()
	if hc.ended {
		return context.Cause(hc.ctx)
	}
	hc.ended = true
	hc.conns = nil
	return nil
}

// close closes all connections that hc owns, and stops watching ctx. After detach it does nothing.
func (hc *handshakeConns) close() {
	hc.stop()
	hc.closeAll()
}

func (hc *handshakeConns) closeAll() {
	hc.mu.Lock()
	defer hc.mu.Unlock()
	hc.ended = true
	for _, conn := range hc.conns {
		conn.Close()
	}
	hc.conns = nil
}

// delayClose lets the handshake finish after the listener or context of this end is closed: hc then
// closes the connections only after closeFrameTimeout, unless the handshake has ended before. The
// server calls it before it sends the frame after which the client counts the pipe as open. A complete
// pipe can still send a close frame, where a closed connection would look like a lost peer.
func (hc *handshakeConns) delayClose() {
	if !hc.stop() {
		return
	}
	parent, detached := hc.ctx, make(chan struct{})
	ctx, end := context.WithCancelCause(context.WithoutCancel(parent))
	unwatch := context.AfterFunc(parent, func() {
		cause := context.Cause(parent)
		if errors.Is(cause, ErrClosed) {
			wait(detached, closeFrameTimeout)
		}
		end(cause)
	})
	stopClose := context.AfterFunc(ctx, hc.closeAll)
	endDelay := sync.OnceFunc(func() { close(detached) })
	hc.ctx = ctx
	hc.stop = func() bool {
		unwatch()
		endDelay()
		return stopClose()
	}
}

// wait blocks until done is closed, for at most d.
func wait(done <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-done:
	}
}

// wrapError returns the error of a handshake that failed with err. It matches ErrHandshake. If ctx has
// not ended it also matches err. If ctx has ended it matches the cause of ctx instead, with the phase
// in the text, and err is only text, because it may be the error of a connection that was closed when
// ctx ended.
func (hc *handshakeConns) wrapError(err error) error {
	cause := context.Cause(hc.ctx)
	switch {
	case cause == nil:
		return fmt.Errorf("%w: %w", ErrHandshake, err)
	case errors.Is(err, ErrClosed), errors.Is(err, cause):
		return fmt.Errorf("%w: %w while %s", ErrHandshake, cause, hc.phase)
	}
	return fmt.Errorf("%w: %w while %s: %v", ErrHandshake, cause, hc.phase, err)
}

// phase is the current step of a handshake, as text that completes "timed out while".
type phase string

// Phases of the client, in order.
const (
	phaseDial   phase = "dialling"
	phaseOffer  phase = "sending the offer"
	phaseAnswer phase = "waiting for the answer"
	phaseProbe  phase = "reporting which channels work"
	phaseMove   phase = "connecting over the chosen transport"
	phaseJoin   phase = "opening the other connections"
)

// Phases of the server, in order.
const (
	phasePacket      phase = "waiting for the first packet"
	phaseBrochure    phase = "waiting for the peer's offer"
	phaseReply       phase = "sending the answer"
	phaseProbeResult phase = "waiting for the report which channels work"
	phaseMoved       phase = "waiting for the connection over the chosen transport"
	phaseOthers      phase = "waiting for the other connections"
)

// Phases of both, of which only the server has the second.
const (
	phaseBuild  phase = "opening streams and channels"
	phaseAccept phase = "waiting for Accept"
)

// connMatcher matches the further connections of a client with the handshake, or the
// pipe, that expects them, by the id in the first packet of each. The server chooses
// the ids at random, so that no other client can guess one and replace a connection.
type connMatcher struct {
	mu      sync.Mutex
	waiting map[uint64]*pendingConn
	count   *atomic.Int64 // of entries of waiting, in all matchers of a context
	newID   func() uint64
}

func randomID() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// expect registers a connection that a client is to open over the named transport, with a new id.
// It is expected until it is delivered or cancelled.
func (r *connMatcher) expect(transportName string) *pendingConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := r.newID()
	for r.waiting[id] != nil {
		id = r.newID()
	}
	t := &pendingConn{id: id, transport: transportName, conn: make(chan transport.Conn, 1), matcher: r}
	r.waiting[id] = t
	r.count.Add(1)
	return t
}

// deliver passes conn to the pendingConn with this id, which then owns it. It reports false, and
// leaves conn to the caller, if no connection with this id is expected, if one was delivered
// before, or if the transport is not the expected one.
func (r *connMatcher) deliver(id uint64, transportName string, conn transport.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.waiting[id]
	if t == nil || t.transport != transportName {
		return false
	}
	r.remove(id)
	t.conn <- conn
	return true
}

func (r *connMatcher) remove(id uint64) {
	if r.waiting[id] != nil {
		delete(r.waiting, id)
		r.count.Add(-1)
	}
}

// pendingConn is a connection that a client is to open; connMatcher delivers it. Its creator must
// call cancel once it needs no connection any more; that does not close one that wait has returned.
type pendingConn struct {
	id        uint64
	transport string
	conn      chan transport.Conn
	matcher   *connMatcher
}

// wait returns the connection once it is delivered; it then belongs to the caller. If ctx ends
// first it returns the cause of ctx, and the connection is still expected.
func (t *pendingConn) wait(ctx context.Context) (transport.Conn, error) {
	select {
	case c := <-t.conn:
		return c, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// cancel stops expecting the connection. If it was delivered and wait has not returned it, cancel
// closes it.
func (t *pendingConn) cancel() {
	t.matcher.mu.Lock()
	t.matcher.remove(t.id)
	t.matcher.mu.Unlock()
	select {
	case c := <-t.conn:
		c.Close()
	default:
	}
}

// The server waits a little for further connections of a client that has ended one: what
// the client opened before that may still be in the network, after a packet that was lost
// and is sent again after 200 ms. The grace period is divided into steps that begin one
// after the other, so that time in which this process did not run counts as one step.
const (
	graceStep  = 50 * time.Millisecond
	graceSteps = 6
)

// prefetchedConn is a connection whose next frame header is read ahead, by a goroutine of its own.
// A server in the compatible dialect needs it while it waits for further connections: only the end
// of the first connection shows that the peer has died.
type prefetchedConn struct {
	transport.Conn
	ready    chan struct{} // closed when size or err is set
	size     int64
	err      error
	returned bool // the header; belongs to the reader
}

// cancelAfterGrace blocks for the grace period, or until ctx ends, and then calls cancel with the
// classified error of a connection that ended with end.
func cancelAfterGrace(ctx context.Context, cancel context.CancelCauseFunc, end error) {
	for range graceSteps {
		wait(ctx.Done(), graceStep)
	}
	cancel(classify(midMessage(end)))
}

// NextFrame implements [transport.Conn]. The first call waits for the header that is read ahead and
// returns it.
func (v *prefetchedConn) NextFrame() (int64, error) {
	if v.returned {
		return v.Conn.NextFrame()
	}
	<-v.ready
	v.returned = v.err == nil
	return v.size, v.err
}
