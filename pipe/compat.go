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

// newCompat creates the engine of the compatible dialect from s and makes it the engine of front. The
// channels are not open yet.
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

// open opens the channels of s and assigns them to pairs of devices. The error is that of openChannel.
// A channel that breaks before all are open fails the pipe; disconnect, which waits until the pipe has
// started, does not close channels that are being opened.
func (p *compat) open(ctx context.Context, s *spec) error {
	ended := func(ch *pipeChannel, err error) { p.connEnded(p.connName(ch), p.closedAsEOF(err)) }
	for _, cs := range s.channels {
		for i, conn := range cs.conns {
			name := fmt.Sprintf("channel %s %d", cs.entry.Name, i)
			p.channelConns = append(p.channelConns, namedConn{conn, name})
		}
		link := channel.Link{Conns: cs.conns, Offer: s.peerOffers[cs.entry.Name]}
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

// closeMessageWrites ends the writing halves of the descriptor connection and, after a reply that
// is being written, of the reply connection. The channels stay open: on some of them this end
// answers tensors that the peer is sending.
func (p *compat) closeMessageWrites() {
	p.desc.CloseWrite()
	p.reply.endWrites()
}

// connEnded handles the end of the reply connection or of a channel. conn is its name, and err the
// error with which it has ended. io.EOF is an orderly end, which noteEnd counts. Any other error fails
// the pipe, unless this end has closed the connection. If the error means that the peer is gone,
// another goroutine first waits for the reason in the peer's close frame and then fails the pipe.
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

// closedAsEOF returns io.EOF if err matches ErrClosed although the pipe is up, and otherwise err. A
// channel whose writing half compatReader.run has ended returns ErrClosed when it has to send; the
// actual cause is that the peer has closed.
func (p *compat) closedAsEOF(err error) error {
	if errors.Is(err, ErrClosed) && p.Err() == nil {
		return io.EOF
	}
	return err
}

// failTransfer fails the pipe because a part of a message has failed with err, and returns err as an
// *Error for op. ch is the channel of the part; it is nil for the frames on the descriptor connection.
// In the compatible dialect a message can neither be completed without the part nor skipped. If the
// peer is gone or this end has closed, the pipe stays up: the connections report their end once
// everything that the peer sent has been read.
func (p *compat) failTransfer(op string, ch *pipeChannel, err error) error {
	failed := p.errorFor(op, p.connName(ch), classify(midMessage(p.closedAsEOF(err))))
	if !isPeerGone(failed) && !errors.Is(failed, ErrClosed) {
		p.fail(failed)
	}
	return failed
}

// noteEnd counts the orderly end of the connection or channel named conn, and closes peerEnded after
// the last one. A peer that closes ends all of them at about the same time. The first end starts a
// grace period: if the others do not end within it, only this connection was lost, and the pipe
// fails.
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

// stopGraceTimer ends the grace period that noteEnd has started, if one runs. The caller holds mu.
func (p *compat) stopGraceTimer() {
	if p.graceTimer != nil {
		p.graceTimer.Stop()
	}
}

// startGraceTimer starts a timer that calls graceExpired with conn and now after CloseTimeout. It does
// nothing if the pipe has failed or all connections have ended. conn is the connection that has ended,
// and now is the present progress of the reader.
func (p *compat) startGraceTimer(conn string, now readProgress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause == nil && p.openEnds > 0 {
		p.graceTimer = time.AfterFunc(p.context.opts.CloseTimeout, func() { p.graceExpired(conn, now) })
	}
}

// graceExpired is called at the end of a grace period, which began when the peer ended the connection
// conn and left others open. before is the reader's progress at its beginning. If the peer has ended
// the descriptor connection too, it has closed the pipe: replies end, and the pipe fails only if a
// message has failed because the peer is lost. If the reader has waited for the peer during the whole
// period, only conn was lost, and the pipe fails. Otherwise the end of the descriptor connection may
// follow unread messages, and another period begins.
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

// connName returns the name of ch's connections for errors, or the name of the descriptor connection if
// ch is nil.
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
