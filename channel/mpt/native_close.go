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

// checkIdle asks the server to close the lanes if no transfer uses them or has used them since the
// previous check. Otherwise it starts the timer again for another check after idleTimeout. If there
// are no lanes, or the channel has ended, or the peer is lost, it does nothing. The client's timer
// calls it, without mu.
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

// busy reports whether the lanes are in use: a slice is moving on a lane, or this end or the peer
// has offered a transfer on lanes that has not completed. The caller holds mu.
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

// handleRest handles a kindRest frame of the peer. Three such frames close the lanes: the request
// of the client, the consent of the server, and the confirmation of the client, upon which the
// server closes the lanes. handleRest sends this end's next frame if no transfers use the lanes.
// The error matches channel.ErrProtocol if the peer must not send the frame now. The caller holds
// mu.
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

// continueRest sends this end's kindRest frame, the next step of closing the lanes, if this end has
// to send one and no transfers use the lanes. Otherwise it does nothing. With its frame the client
// also closes the lanes; the server leaves them open until the client has confirmed. The caller
// holds mu.
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

// closeLanes removes all lanes from e and closes them on other goroutines. After that the ends may
// open lanes again. The caller holds mu, and no slice may be using the lanes.
func (e *nativeEnd) closeLanes() {
	for _, l := range e.lanes {
		e.lifecycle.Go(func() { l.close(transport.ErrClosed) })
	}
	e.lanes, e.conns, e.opening = nil, nil, opening{}
}

// mayOffer reports whether the end with the role offers may offer transfers on lanes: the lanes are
// open, and closing them has not begun. At the client there is one exception: for offers of the
// server, mayOffer returns true until the server's consent to the closing has arrived, because the
// server may have sent an offer before it received the client's request. The caller holds mu.
func (e *nativeEnd) mayOffer(offers channel.Role) bool {
	limit := restAccepted // offers that the server sent before it accepted may be on their way
	if offers == channel.RoleConnect || offers == e.role {
		limit = restRequested
	}
	return e.lanes != nil && e.opening.rest < limit
}

// connectionLost handles err, with which the control connection or a lane has ended. If err means
// that the peer has closed or cannot be reached, it calls peerLost, which lets transfers complete
// whose bytes are on their way. Otherwise it ends the channel with err. The caller does not hold
// mu.
func (e *nativeEnd) connectionLost(err error) {
	if named := e.wrapError(err); isDisconnect(err) {
		e.peerLost(named)
	} else {
		e.lifecycle.Fail(named)
	}
}

// isDisconnect reports whether err means that the peer has closed the connection or cannot be
// reached: err matches io.EOF or io.ErrUnexpectedEOF, or contains an error of the system or a
// net.Error. It returns false for other errors, such as violations of the protocol, and for
// transport.ErrClosed, the error of a connection that this end has closed.
func isDisconnect(err error) bool {
	var errno syscall.Errno
	var network net.Error
	return !errors.Is(err, transport.ErrClosed) &&
		(errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
			errors.As(err, &errno) || errors.As(err, &network))
}

// peerLost handles the loss of the peer, for which cause is the error. It cancels all Sends, and
// the Recvs whose bytes have not all been requested, because the peer sends only requested bytes.
// The other Recvs continue until their lanes or the bulk connection end. No transfer can begin
// after that. peerLost also closes the unused lanes and the write direction of the others, and
// reports cause to the pipe on another goroutine. If the channel has ended, or peerLost was called
// before, it does nothing: the connections of a closing peer end in any order. It locks mu.
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

// retireLane marks lane l, on which no slice moves, as retired, and closes it on another goroutine.
// It is for lanes that remain after the peer was lost: e.peerGone must be set. The caller holds mu.
func (e *nativeEnd) retireLane(l *lane) {
	l.retired = true
	e.lifecycle.Go(func() { l.close(e.peerGone) })
}

// endCause returns nil if transfers may begin, and otherwise why not: the error of the channel
// after its end, or the error with which the peer was lost. The caller holds mu.
func (e *nativeEnd) endCause() error {
	if e.ended {
		return e.lifecycle.Err()
	}
	return e.peerGone
}
