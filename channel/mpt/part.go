package mpt

import (
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/tensorpipe-go/tensorpipe/transport"
)

// lost is the end of the stream or of a lane. That the peer is gone need not be the
// end of what it sent before, see part; all else is.
func (e *nativeEnd) lost(err error) {
	if named := e.explain(err); gone(err) {
		e.part(named)
	} else {
		e.life.Fail(named)
	}
}

// gone reports whether err says no more than that the peer is not there.
func gone(err error) bool {
	var errno syscall.Errno
	var network net.Error
	return !errors.Is(err, transport.ErrClosed) &&
		(errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
			errors.As(err, &errno) || errors.As(err, &network))
}

// part is what follows when a connection tells that the peer is gone, be it the
// stream or a lane, for the connections of a peer that closes end in any order. It
// sent only what it had been asked for. So a Recv of which all was asked for goes on,
// until its lanes, or what is the pipe's own, end by themselves. For everything else
// it is too late.
func (e *nativeEnd) part(cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over() != nil {
		return
	}
	e.parted = cause
	e.stopOpening(cause)
	if e.idle != nil {
		e.idle.Stop()
	}
	for id := range e.small {
		e.host.Abort(id, cause)
	}
	for _, j := range e.sends.jobs {
		e.giveUp(&e.sends, j, cause)
	}
	for _, j := range e.recvs.jobs {
		if j.cut < j.Buf.Len() {
			e.giveUp(&e.recvs, j, cause)
		}
	}
	clear(e.offers)
	e.leaveLanes()
	e.life.Later(e.broken, cause)
}

// leaveLanes says on each lane that nothing more comes from this end, so that no two
// ends wait for each other. It closes connections that are no lanes yet. The caller
// holds mu.
func (e *nativeEnd) leaveLanes() {
	if e.lanes == nil {
		e.drop()
	}
	for _, l := range e.lanes {
		if l.moving == 0 {
			e.leave(l)
		} else {
			e.life.Go(func() { _ = l.conn.CloseWrite() }) // its mover notices what is wrong with it
		}
	}
}

// leave closes a lane on which nothing is to come any more. The caller holds mu.
func (e *nativeEnd) leave(l *lane) {
	l.retired = true
	e.life.Go(func() { l.close(e.parted) })
}

// over is why nothing begins any more; nil if it does. The caller holds mu.
func (e *nativeEnd) over() error {
	if e.ended {
		return e.life.Err()
	}
	return e.parted
}
