package pipe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tensorpipe-go/tensorpipe/channel"
)

// compat is the engine of the compatible dialect, TensorPipe's own protocol, which C++
// peers use.
type compat struct {
	*Pipe

	desc         namedConn
	reply        replyConn
	control      compatControl
	channelConns []namedConn

	writer compatWriter
	reader compatReader

	// Guarded by mu of the Pipe.
	openEnds   int         // connections and channels that the peer has not ended
	anyEnded   bool        // the peer has ended at least one
	graceTimer *time.Timer // runs while some, but not all, have ended
}

// newCompat creates the implementation of front in the compatible dialect and stores it in
// front.engine. The implementation uses the descriptor, reply and control connections of s. The
// channels are opened later, by open.
func newCompat(front *Pipe, s *spec) {
	p := &compat{
		Pipe:     front,
		desc:     namedConn{s.desc, "descriptor"},
		reply:    replyConn{namedConn: namedConn{s.reply, "reply"}},
		openEnds: 2 + len(s.channels),
	}
	if s.prefetched != nil {
		p.desc.Conn = s.prefetched
	}
	front.engine = p
	p.control.init(p, s.control)
	p.writer.init(p)
	p.reader.init(p)
}

func (p *compat) loops() []func() {
	return []func(){p.writer.run, p.reader.run, p.writer.readReplies, p.control.run, p.control.write}
}

// open opens the channels that s lists and records which pairs of devices they serve. If a channel
// cannot be opened, open returns the error of openChannel and leaves the channels opened so far to
// disconnect. disconnect closes the channels only after the pipe has started, so none is closed
// while it is being opened.
func (p *compat) open(ctx context.Context, s *spec) error {
	ended := func(ch *pipeChannel, err error) { p.connEnded(p.connName(ch), p.closedAsEOF(err)) }
	for _, cs := range s.channels {
		for i, conn := range cs.conns {
			name := fmt.Sprintf("channel %s %d", cs.entry.Name, i)
			p.channelConns = append(p.channelConns, namedConn{conn, name})
		}
		link := channel.Link{Conns: cs.conns, Remote: s.peerDevices[cs.entry.Name], Offer: s.peerOffers[cs.entry.Name]}
		if err := p.openChannel(ctx, cs.entry, link, ended); err != nil {
			return err
		}
	}
	p.assignChannels(s.routes)
	return nil
}

func (p *compat) finishWriting(ctx context.Context) (err error) {
	if !closedBefore(ctx, p.sender.idle(), nil) {
		err = fmt.Errorf("%w: not all messages were sent", ErrCloseTimeout)
	}
	p.sendClose(ErrClosed)
	p.closeMessageWrites()
	return err
}

func (p *compat) sendClose(cause error) { p.control.sendClose(closeReason(cause)) }

func (p *compat) disconnect(cause error) {
	p.mu.Lock()
	p.stopGraceTimer()
	p.mu.Unlock()
	wait(p.control.wrote, closeFrameTimeout)
	p.desc.Close()
	p.reply.Close()
	if p.control.exists() {
		p.control.Close()
	}
	p.closeChannels(cause)
	p.running.Wait()
}

// closeMessageWrites ends the writing half of the descriptor connection, and that of the reply
// connection as soon as no reply is being written. It does not wait. The channels stay open,
// because on some of them this end answers tensors that the peer is still sending.
func (p *compat) closeMessageWrites() {
	p.desc.CloseWrite()
	p.reply.endWrites()
}

// connEnded handles err, with which the reply connection or a channel has ended. conn is the name
// of that connection or channel. io.EOF is an orderly end, which noteEnd counts. Any other error
// fails the pipe, except one that matches ErrClosed: then this end has closed the connection. If
// err means that the peer is gone, connEnded returns at once, and a new goroutine waits for the
// reason in the peer's close frame and then fails the pipe.
func (p *compat) connEnded(conn string, err error) {
	if errors.Is(err, io.EOF) {
		p.noteEnd(conn)
		return
	}
	err = classify(err)
	if errors.Is(err, ErrClosed) {
		return // closed by this end, which has the cause
	}
	if !isPeerGone(err) {
		p.fail(p.errorFor("connection", conn, err))
		return
	}
	go func() { p.fail(p.errorFor("connection", conn, p.control.explainEnd(err))) }() // waits for the close frame
}

// closedAsEOF returns io.EOF if err matches ErrClosed although p.Err() is nil. Otherwise it returns
// err unchanged. After the peer has closed, compatReader.run ends the writing halves of the
// channels, and a channel that has to send then returns ErrClosed, although the actual cause is the
// peer's end.
func (p *compat) closedAsEOF(err error) error {
	if errors.Is(err, ErrClosed) && p.Err() == nil {
		return io.EOF
	}
	return err
}

// failTransfer returns err, with which a part of a message has failed, as an *Error for the
// operation op, and fails the pipe with that *Error: in the compatible dialect a message can
// neither be completed without the part nor skipped. If the peer is gone or this end has closed,
// failTransfer does not fail the pipe, because the connections report their end after everything
// that the peer sent has been read. ch is the channel of the part, and nil for a frame on the
// descriptor connection.
func (p *compat) failTransfer(op string, ch *pipeChannel, err error) error {
	failed := p.errorFor(op, p.connName(ch), classify(midMessage(p.closedAsEOF(err))))
	if !isPeerGone(failed) && !errors.Is(failed, ErrClosed) {
		p.fail(failed)
	}
	return failed
}

// noteEnd counts an orderly end, by the peer, of the connection or channel named conn, and closes
// p.peerEnded when all of them have ended. A peer that closes ends all of them at about the same
// time. Therefore the first call starts the timer of startGraceTimer, which finds out whether only
// conn was lost.
func (p *compat) noteEnd(conn string) {
	p.mu.Lock()
	p.openEnds--
	first := !p.anyEnded
	p.anyEnded = true
	if p.openEnds == 0 {
		p.stopGraceTimer()
		close(p.peerEnded)
	}
	p.mu.Unlock()
	if first {
		p.startGraceTimer(conn, p.reader.progress())
	}
}

// stopGraceTimer stops the timer of startGraceTimer, if one was started. The caller holds p.mu.
func (p *compat) stopGraceTimer() {
	if p.graceTimer != nil {
		p.graceTimer.Stop()
	}
}

// startGraceTimer starts a timer that calls graceExpired after Options.CloseTimeout, with the same
// arguments: conn is the name of the connection that the peer has ended, and the parameter now is
// the present progress of the reader's goroutine. If the pipe has failed, or the peer has ended all
// connections, startGraceTimer does nothing. It locks p.mu.
func (p *compat) startGraceTimer(conn string, now readProgress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause == nil && p.openEnds > 0 {
		p.graceTimer = time.AfterFunc(p.context.opts.CloseTimeout, func() { p.graceExpired(conn, now) })
	}
}

// graceExpired is called if the peer has ended the connection named conn, and CloseTimeout later
// has not ended all others. The parameter before is the progress of the reader's goroutine when the
// timer was started.
//
// If the peer has ended the descriptor connection too, the peer has closed the pipe: graceExpired
// ends the wait for replies, and fails the pipe only if a message of this end has failed because
// the peer is lost. If instead the reader has waited for the peer during the whole period, only
// conn was lost, and graceExpired fails the pipe with ErrPeerLost. Otherwise unread messages may
// still precede the end of the descriptor connection, and graceExpired starts the timer again.
func (p *compat) graceExpired(conn string, before readProgress) {
	now := p.reader.progress()
	switch {
	case now.ended: // the peer closed the pipe; remaining messages can be read
		p.writer.endReplies()
		if lost := p.writer.lossError(); lost != nil {
			p.fail(lost) // the writer got the error of the connection instead of the reader
		}
	case now.waiting && now == before:
		p.fail(p.errorFor("connection", conn, fmt.Errorf("%w: it ended this connection and no other", ErrPeerLost)))
	default:
		p.startGraceTimer(conn, now)
	}
}

// connName returns the name that errors have for the connections of the channel ch, or for the
// descriptor connection if ch is nil.
func (p *compat) connName(ch *pipeChannel) string {
	if ch == nil {
		return p.desc.name
	}
	return "channel " + ch.name
}

func (p *compat) confirms() bool { return p.control.exists() }

func (p *compat) stats() PipeStats {
	return PipeStats{
		Received:       p.reader.traffic.snapshot(),
		BytesReadAhead: p.reader.readAhead.InUse(),
		Compression:    CompressionStats{Refused: "the pipe uses the compatible dialect"},
	}
}
