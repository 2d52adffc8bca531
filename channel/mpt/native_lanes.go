package mpt

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/internal/bulk"
	"github.com/tensorpipe-go/tensorpipe/internal/wire"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// lane is an open lane of the native dialect. It owns conn; mover moves slices over it.
type lane struct {
	number  int
	conn    transport.Conn
	mover   *bulk.Mover
	channel channel.Channel // lane 0 of mover

	// Guarded by nativeEnd.mu:
	requested int  // slices requested from the peer
	moving    int  // slices in progress in both directions
	retired   bool // neither end will use it any more
}

// stream returns conn as a byte stream without frames; the stream shares the connection with conn.
// The error matches transport.ErrNotSupported if the transport has no such streams, or is that of
// conn.
func stream(conn transport.Conn) (transport.Stream, error) {
	m, ok := conn.(transport.Multiplexer)
	if !ok {
		return nil, fmt.Errorf("lane: %w", transport.ErrNotSupported)
	}
	return m.Stream()
}

// close ends the transfers of lane l with cause, waits until they have completed, and closes the
// connection. The caller does not hold nativeEnd.mu.
func (l *lane) close(cause error) {
	_ = l.mover.Close(cause)
	_ = l.conn.Close()
}

// laneBroken handles the failure of lane l with err: on another goroutine it calls connectionLost,
// unless the lane is retired. It does not block. The mover of the lane calls it.
func (e *nativeEnd) laneBroken(l *lane, err error) {
	if named, ok := errors.AsType[*channel.Error](err); ok {
		err = named.Err // replace the name of the bulk channel
	}
	e.lifecycle.Go(func() {
		e.mu.Lock()
		retired := l.retired
		e.mu.Unlock()
		if !retired {
			e.connectionLost(err)
		}
	})
}

// A channel of the native dialect has one lane per processor, within these bounds: not fewer, because a
// lane also waits for its peer; not more, because then memory limits the throughput.
const minNativeLanes, maxNativeLanes = 4, 8

// NativeLanes returns the greatest number of lanes that one end of a channel in this process uses
// in the native dialect: the number of processors that Go uses, but at least 4 and at most 8, and
// never more than have, the number of lanes of the end's [Factory]. A channel uses the smaller
// number of its two ends.
func NativeLanes(have int) int {
	return min(have, max(minNativeLanes, min(maxNativeLanes, runtime.GOMAXPROCS(0))))
}

// opening is the state of opening and closing the lanes. It is guarded by nativeEnd.mu.
type opening struct {
	begun     bool                    // kindOpen was sent or received
	granted   int                     // lanes announced by the server; at the client: requested
	answered  bool                    // the client has received kindLanes, or the server kindOpened
	confirmed bool                    // the server has confirmed each lane, and uses no frames any more
	cancel    context.CancelCauseFunc // cancels the server's wait for lanes
	rest      restState               // state of closing open lanes
}

// wantLanes sends the server a request for lanes, unless lanes have been requested. It does nothing
// at the server, which need not request lanes because the client takes part in every large
// transfer. It also does nothing if the peer is a process of this machine, because the bulk
// connection is then faster than any network. The caller holds mu.
func (e *nativeEnd) wantLanes() {
	if e.role == channel.RoleListen || e.opening.begun || transport.IdentityOf(e.pipeConn).Process != nil {
		return
	}
	e.opening.begun, e.opening.granted = true, NativeLanes(e.factory.lanes())
	e.writer.Push(controlFrame{kind: kindOpen, count: e.opening.granted})
}

// handleOpen handles the client's request for count lanes. It starts a goroutine that calls grant
// for as many lanes as both ends can use. If grant fails, all tensors use the bulk connection.
// handleOpen returns an error that matches channel.ErrProtocol if count is 0, or if the peer must
// not request lanes now. The caller holds mu.
func (e *nativeEnd) handleOpen(count int) error {
	if e.role == channel.RoleConnect || e.opening.begun || count == 0 {
		return protocolError("it requests %d lanes, out of turn", count)
	}
	e.opening.begun = true
	ctx, cancel := context.WithTimeoutCause(e.openCtx, acceptTimeout, ErrLate)
	ctx, e.opening.cancel = context.WithCancelCause(ctx)
	e.lifecycle.Go(func() {
		defer cancel()
		if err := e.grant(ctx, min(count, NativeLanes(e.factory.lanes()))); err != nil {
			e.abandonLanes(err)
		}
	})
	return nil
}

// grant announces n lanes to the client, accepts their connections, adds these to e.conns, and
// confirms each of them to the client. If it cannot listen it announces no lanes, and returns the
// error. It also returns an error if a lane does not connect before ctx ends, or fails. After an
// error the caller must call abandonLanes. The caller does not hold mu.
func (e *nativeEnd) grant(ctx context.Context, n int) error {
	x, err := e.factory.prepareLanes(ctx, e.pipeConn, n)
	if err != nil {
		e.sendLanes(wire.MPTServerHello{})
		return err
	}
	defer x.release()
	e.sendLanes(x.hello)
	for i := range n {
		conn, err := x.accept(ctx, i)
		if err == nil {
			err = e.addConns(conn)
		}
		if err == nil {
			err = confirmLane(ctx, conn, x.reservations[i].id)
		}
		if err != nil {
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.opening.confirmed = true
	e.work.Broadcast()
	return nil
}

func (e *nativeEnd) sendLanes(hello wire.MPTServerHello) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.opening.granted = len(hello.Lanes)
	e.writer.Push(controlFrame{kind: kindLanes, hello: hello})
}

// addConns appends conns to e.conns, the connections of lanes that e owns and closes, and returns
// nil. If the channel has ended or the peer is lost, it closes conns on another goroutine instead,
// and returns why. It locks mu.
func (e *nativeEnd) addConns(conns ...transport.Conn) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if cause := e.endCause(); cause != nil {
		e.lifecycle.Go(func() { closeAll(conns) })
		return cause
	}
	e.conns = append(e.conns, conns...)
	return nil
}

// dropConns sets e.conns to nil and closes these connections, which must not have become lanes, on
// another goroutine. It wakes a handleOpened that waits. The caller holds mu.
func (e *nativeEnd) dropConns() {
	conns := e.conns
	e.conns = nil
	e.lifecycle.Go(func() { closeAll(conns) })
	e.work.Broadcast()
}

// confirmLane confirms a lane to the client by sending id, the lane's number, over conn. If ctx
// ends first, it closes conn. The error is transport.ErrNotSupported if conn is not a
// transport.Multiplexer, and otherwise that of conn; conn stays open unless ctx has ended.
func confirmLane(ctx context.Context, conn transport.Conn, id uint64) error {
	stopWatch := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stopWatch()
	if _, ok := conn.(transport.Multiplexer); !ok {
		return transport.ErrNotSupported
	}
	return sendClientHello(conn, id)
}

// abandonLanes logs err, with which the opening of lanes has failed, and closes the connections
// that were opened. All tensors then use the bulk connection. If the channel has ended or the peer
// is lost it does nothing. It locks mu.
func (e *nativeEnd) abandonLanes(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.endCause() != nil {
		return
	}
	e.log.Warn("tensors are not striped", "channel", Name, "peer", e.peer, "error", err)
	e.dropConns()
}

// handleLanes handles the server's announcement of lanes, whose encoding is text: it starts a
// goroutine that dials them. It does not retain text. The error is a *wire.Error, or matches
// channel.ErrProtocol if the peer must not announce lanes now or announces too many. The caller
// holds mu.
func (e *nativeEnd) handleLanes(text []byte) error {
	if e.role == channel.RoleListen || !e.opening.begun || e.opening.answered {
		return protocolError("it announces lanes, out of turn")
	}
	e.opening.answered = true
	lanes, err := decodeServerHello(text, e.opening.granted)
	if err != nil {
		return err
	}
	e.lifecycle.Go(func() { e.dialLanes(lanes) })
	return nil
}

// dialLanes dials lanes at the client, waits until the server has confirmed each, and makes them
// usable. If one of them fails, or lanes is empty, it logs that and uses none: all tensors use the
// bulk connection then. It sends the server the number of opened lanes, which is 0 after a failure.
// If the channel has ended or the peer is lost, it makes no lanes usable and sends nothing. The
// caller does not hold mu.
func (e *nativeEnd) dialLanes(lanes []wire.MPTLane) {
	ctx, cancel := context.WithTimeoutCause(e.openCtx, dialTimeout, ErrLate)
	defer cancel()
	conns, err := e.factory.dial(ctx, e.pipeConn, lanes, func(conn transport.Conn, id uint64) error {
		confirmed, err := receiveClientHello(conn)
		if err == nil && confirmed != id {
			err = protocolError("lane %d is confirmed as %d", id, confirmed)
		}
		return err
	})
	if len(lanes) == 0 {
		err = errNotListening
	}
	if err == nil {
		err = e.addConns(conns...)
	}
	if err != nil {
		e.abandonLanes(err)
		conns = nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.endCause() == nil {
		e.useLanes()
		e.writer.Push(controlFrame{kind: kindOpened, count: len(conns)})
	}
}

// handleOpened handles the report of the client that it has opened count lanes: all that were
// announced, or 0. If count is 0 the server closes the connections of lanes, and otherwise makes
// the lanes usable. The error matches channel.ErrProtocol, or is that with which the channel has
// ended or the peer was lost. The caller holds mu, which handleOpened releases while it waits for
// grant.
func (e *nativeEnd) handleOpened(count int) error {
	o := &e.opening
	if e.role == channel.RoleConnect || !o.begun || o.answered {
		return protocolError("it has opened %d lanes, out of turn", count)
	}
	o.answered = true
	if count == 0 {
		o.cancel(errNotDialled)
		e.dropConns()
		return nil
	}
	if count != o.granted || len(e.conns) != count {
		return protocolError("it has opened %d lanes, of %d that were announced and %d that have come", count, o.granted, len(e.conns))
	}
	// The client may have received the confirmation of the last lane, and report the lanes, before
	// grant's write of it has returned. No other frame is handled meanwhile: the next one may be an
	// offer on lanes.
	for !o.confirmed && e.conns != nil && e.endCause() == nil {
		e.work.Wait()
	}
	switch cause := e.endCause(); {
	case cause != nil:
		return cause
	case e.conns == nil:
		return protocolError("it has opened lanes that failed")
	}
	e.useLanes()
	return nil
}

// useLanes sets e.lanes to a new lane for each connection of e.conns, so that transfers may use
// them. The client also starts the timer that closes unused lanes. The connections stay in e.conns,
// so that release can close them. If there are no connections it does nothing. The caller holds mu.
func (e *nativeEnd) useLanes() {
	if len(e.conns) == 0 {
		return
	}
	e.lanes = make([]*lane, len(e.conns))
	for i, conn := range e.conns {
		l := &lane{number: i, conn: conn}
		l.mover = bulk.New(bulk.Config{
			Open:     func(context.Context) (transport.Stream, error) { return stream(conn) },
			Ready:    func(uint16, uint64) {}, // the order already requests the slice
			Broken:   func(err error) { e.laneBroken(l, err) },
			Arrived:  e.arrived,
			Checksum: e.checksum,
			Peer:     e.peer,
		})
		l.channel = l.mover.Lane(0)
		e.lanes[i] = l
	}
	if e.role == channel.RoleConnect {
		e.idle = time.AfterFunc(idleTimeout, e.checkIdle)
	}
}
