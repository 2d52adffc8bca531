package mpt

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

// idleTimeout is the minimum time without transfers after which lanes are closed; it may take up to
// twice as long.
const idleTimeout = 30 * time.Second

// restState is the progress of closing unused lanes. The ends send kindRest in turn, the client twice.
type restState int

const (
	restNone      restState = iota
	restRequested           // the client offers nothing on lanes any more
	restAccepted            // the server has no transfers on lanes, and will not begin any
)

// checkIdle asks the server to close the lanes if no transfer has used them since the previous check,
// and otherwise checks again after idleTimeout. It runs at the client, on the goroutine of the timer.
func (e *nativeEnd) checkIdle() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.endCause() != nil || e.lanes == nil {
		return
	}
	if e.active || e.busy() {
		e.active = false
		e.idle.Reset(idleTimeout)
		return
	}
	e.opening.rest = restRequested
	e.writer.Push(controlFrame{kind: kindRest})
}

// busy reports whether transfers move on lanes, or either end has offered one on lanes that has not
// completed. The caller holds mu.
func (e *nativeEnd) busy() bool {
	for _, l := range e.lanes {
		if l.moving > 0 {
			return true
		}
	}
	for _, s := range []*direction{&e.sends, &e.recvs} {
		for _, op := range s.ops {
			if op.offered && op.route == routeLanes {
				return true
			}
		}
	}
	for _, w := range e.offers {
		if w == routeLanes {
			return true
		}
	}
	return false
}

// handleRest handles the peer's kindRest, one of the three steps of closing the lanes: the request of
// the client, the consent of the server, the confirmation of the client, after which the server closes
// them. The error matches channel.ErrProtocol if the frame is out of turn. The caller holds mu.
func (e *nativeEnd) handleRest() error {
	o := &e.opening
	switch {
	case e.role == channel.RoleListen && e.lanes != nil && o.rest == restNone:
		o.rest = restRequested
	case e.role == channel.RoleConnect && o.rest == restRequested:
		o.rest = restAccepted
	case e.role == channel.RoleListen && o.rest == restAccepted:
		e.closeLanes()
		return nil
	default:
		return protocolError("it closes lanes, out of turn")
	}
	e.continueRest()
	return nil
}

// continueRest sends this end's kindRest if it is this end's turn and no transfers use the lanes. It
// does nothing otherwise. The client also closes the lanes; the server leaves them open until the
// client has confirmed. The caller holds mu.
func (e *nativeEnd) continueRest() {
	mine := restRequested
	if e.role == channel.RoleConnect {
		mine = restAccepted
	}
	if e.endCause() != nil || e.opening.rest != mine || e.busy() {
		return
	}
	for _, l := range e.lanes {
		l.retired = true
	}
	if e.role == channel.RoleListen {
		e.opening.rest = restAccepted // the client closes first, because it may have to read remaining bytes
	} else {
		e.closeLanes()
	}
	e.writer.Push(controlFrame{kind: kindRest})
}

// closeLanes forgets the lanes and closes them on other goroutines. The ends may open lanes again
// then. The caller holds mu, and no slice uses the lanes.
func (e *nativeEnd) closeLanes() {
	for _, l := range e.lanes {
		e.lifecycle.Go(func() { l.close(transport.ErrClosed) })
	}
	e.lanes, e.conns, e.opening = nil, nil, opening{}
}

// mayOffer reports whether the end with the role offers may offer transfers on lanes: the lanes are
// open, and neither end has begun to close them. At the client, offers of the server stay valid until
// the server has accepted the closing, since it may have sent them before. The caller holds mu.
func (e *nativeEnd) mayOffer(offers channel.Role) bool {
	limit := restAccepted // offers that the server sent before it accepted may be on their way
	if offers == channel.RoleConnect || offers == e.role {
		limit = restRequested
	}
	return e.lanes != nil && e.opening.rest < limit
}

// connectionLost handles the error with which the control stream or a lane has ended. If it means that
// the peer has closed or failed, transfers whose bytes are on their way may still complete, see
// peerLost; any other error ends the channel. The caller does not hold mu.
func (e *nativeEnd) connectionLost(err error) {
	if named := e.wrapError(err); isDisconnect(err) {
		e.peerLost(named)
	} else {
		e.lifecycle.Fail(named)
	}
}

// isDisconnect reports whether err means only that the peer has closed the connection or cannot be
// reached. It returns false for the error of a connection that this end has closed.
func isDisconnect(err error) bool {
	var errno syscall.Errno
	var network net.Error
	return !errors.Is(err, transport.ErrClosed) &&
		(errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
			errors.As(err, &errno) || errors.As(err, &network))
}

// peerLost handles the loss of the peer, which cause describes: it cancels all transfers that cannot
// complete, lets none begin, and reports cause to the pipe. The peer has sent only what was requested;
// therefore a Recv whose bytes have all been requested continues until its lanes, or the bulk
// connection, end. Further calls do nothing: the connections of a closing peer end in any order.
func (e *nativeEnd) peerLost(cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.endCause() != nil {
		return
	}
	e.peerGone = cause
	e.stopOpening(cause)
	if e.idle != nil {
		e.idle.Stop()
	}
	for id := range e.small {
		e.host.Abort(id, cause)
	}
	for _, op := range e.sends.ops {
		e.cancel(&e.sends, op, cause)
	}
	for _, op := range e.recvs.ops {
		if op.assigned < op.Buf.Len() {
			e.cancel(&e.recvs, op, cause)
		}
	}
	clear(e.offers)
	// So that the two ends do not wait for each other, unused lanes are closed, and the write direction
	// of the others. Connections that have not become lanes are closed too.
	if e.lanes == nil {
		e.dropConns()
	}
	for _, l := range e.lanes {
		if l.moving == 0 {
			e.retireLane(l)
		} else {
			e.lifecycle.Go(func() { _ = l.conn.CloseWrite() }) // its mover detects errors
		}
	}
	e.lifecycle.CompleteAsync(e.broken, cause)
}

// retireLane closes lane l, which has no slices, on another goroutine, because the peer is lost. The
// caller holds mu.
func (e *nativeEnd) retireLane(l *lane) {
	l.retired = true
	e.lifecycle.Go(func() { l.close(e.peerGone) })
}

// endCause returns why no transfer may begin any more, or nil: the error of the channel after its end,
// or that with which the peer was lost. The caller holds mu.
func (e *nativeEnd) endCause() error {
	if e.ended {
		return e.lifecycle.Err()
	}
	return e.peerGone
}
