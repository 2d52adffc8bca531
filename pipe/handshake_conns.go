package pipe

import (
	"cmp"
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

// add makes hc the owner of conn and returns nil. If hc is closed or detached, add closes conn and
// returns the error of endError.
func (hc *handshakeConns) add(conn transport.Conn) error {
	hc.mu.Lock()
	defer hc.mu.Unlock()
	if hc.ended {
		conn.Close()
		return hc.endError()
	}
	hc.conns = append(hc.conns, conn)
	return nil
}

// endError returns why hc holds no connections: the cause of the context if that has ended, or
// ErrClosed after close or detach.
func (hc *handshakeConns) endError() error { return cmp.Or(context.Cause(hc.ctx), ErrClosed) }

// dial opens a connection to addr over t and makes hc its owner. If hc's context ends, dialling
// stops. The error is that of t or of add; the returned connection must then not be used.
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

// detach makes hc give up all its connections, which the caller then owns, and stop watching its
// context, and returns nil. If hc was closed or detached before, detach returns the error of
// endError.
func (hc *handshakeConns) detach() error {
	hc.stop()
	hc.mu.Lock()
	defer hc.mu.Unlock()
	if hc.ended {
		return hc.endError()
	}
	hc.ended = true
	hc.conns = nil
	return nil
}

// close closes all connections that hc owns and stops watching its context. Connections that are
// added later are closed at once. After detach there are none to close.
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

// delayClose changes what happens when the listener or the context of this end is closed: hc then
// closes its connections only after closeFrameTimeout, unless the handshake has ended before.
// hc.ctx is replaced by a context that also ends that much later. For any other end of the context,
// such as a timeout, nothing is delayed. If the context has ended already, delayClose does nothing.
//
// The server calls delayClose before it sends the frame after which the client counts the pipe as
// open. The complete pipe can then send a close frame; to the client, a connection that is closed
// without a close frame looks like a lost peer.
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

// wait blocks until done is closed, but not longer than d.
func wait(done <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-done:
	}
}

// wrapError returns the error of a handshake that failed with err. It matches ErrHandshake. If hc's
// context has not ended, it also matches err. If the context has ended, it matches the cause of the
// context instead, and its text names the phase of the handshake. err then appears in the text at
// most, because it may be the error of a connection that was closed when the context ended.
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

// expect registers a connection that a client is to open over the named transport, and returns it
// as a pendingConn with a new random id. The registration lasts until the connection is delivered
// or the pendingConn is cancelled. expect locks r.mu.
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

// deliver gives conn to the pendingConn with this id, which then owns it, and returns true. It
// returns false and leaves conn to the caller if no connection with this id is expected, if one was
// delivered before, or if the transport is not the expected one. It locks r.mu.
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

// wait blocks until the connection is delivered, and returns it; the caller then owns it. If ctx
// ends first it returns the cause of ctx, and the connection is still expected.
func (t *pendingConn) wait(ctx context.Context) (transport.Conn, error) {
	select {
	case c := <-t.conn:
		return c, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// cancel removes the registration of t, so that the connection can no longer be delivered. If it
// was delivered and wait has not returned it, cancel closes it. Calling cancel again does nothing.
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

// cancelAfterGrace blocks for a grace period of graceSteps times graceStep, or until ctx ends. Then
// it calls cancel with the error that classify returns for end, the error with which a connection
// has ended. If end is io.EOF, cancelAfterGrace uses io.ErrUnexpectedEOF in its place, because the
// connection should not have ended.
func cancelAfterGrace(ctx context.Context, cancel context.CancelCauseFunc, end error) {
	for range graceSteps {
		wait(ctx.Done(), graceStep)
	}
	cancel(classify(midMessage(end)))
}

// NextFrame returns the size of the next frame, as [transport.Conn] describes. The goroutine that
// made v has read the first header ahead: until that has succeeded, NextFrame waits for the result
// and returns it. Later calls read from the connection. Calls must not overlap.
func (v *prefetchedConn) NextFrame() (int64, error) {
	if v.returned {
		return v.Conn.NextFrame()
	}
	<-v.ready
	v.returned = v.err == nil
	return v.size, v.err
}
