package pipe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// compat is the compatible dialect: TensorPipe's own protocol, which C++ peers
// speak.
type compat struct {
	*Pipe

	desc         link
	reply        replies
	control      control
	channelConns []link

	out outbox
	in  inbox

	built chan struct{} // closed when the loops run, or will not
	loops sync.WaitGroup

	// Guarded by mu of the Pipe.
	ends     int           // connections and channels that the peer has not ended
	allEnded chan struct{} // closed when ends is 0
	graceful bool          // the first has ended
	grace    *time.Timer   // runs while some, but not all, have ended
}

func (p *compat) close() error {
	p.out.refuse(p.errorFor("write", "", ErrClosed))
	ctx, cancel := context.WithTimeout(context.Background(), p.context.opts.CloseTimeout)
	defer cancel()
	var drain sync.WaitGroup
	drain.Go(p.in.drain)
	err := p.out.flush(ctx)
	p.control.goodbye(ErrClosed)
	p.endMessages()
	if err == nil {
		err = p.awaitPeer(ctx)
	}
	p.fail(ErrClosed)
	drain.Wait()
	<-p.gone
	if err != nil {
		return p.errorFor("close", "", err)
	}
	return nil
}

// awaitPeer waits until the peer has ended all connections.
func (p *compat) awaitPeer(ctx context.Context) error {
	if !inTime(ctx, p.allEnded, p.down) {
		return fmt.Errorf("%w: the peer has not closed its end", ErrCloseTimeout)
	}
	return nil
}

// fail takes the pipe down. The first cause stays.
func (p *compat) fail(cause error) {
	p.mu.Lock()
	if p.cause != nil {
		p.mu.Unlock()
		return
	}
	p.cause = cause
	p.stopGrace()
	close(p.down)
	p.mu.Unlock()
	go p.tearDown(cause)
}

// tearDown closes everything and waits for it to end. Closing the connections
// is what wakes blocked calls; they let go of their memory and return.
func (p *compat) tearDown(cause error) {
	p.out.stop(p.errorFor("write", "", cause)) // first, or writes would fail for the closing
	p.control.goodbye(cause)
	<-p.built
	p.control.awaitGoodbye()
	p.closeConns()
	p.closeChannels(cause)
	p.loops.Wait()
	p.account.Close()
	p.context.forget(p.Pipe)
	close(p.gone)
}

func (p *compat) closeConns() {
	p.desc.Close()
	p.reply.Close()
	if p.control.exists() {
		p.control.Close()
	}
}

// endMessages tells the peer that neither messages nor replies will come any
// more. The channels stay open: on some of them this end answers the tensors
// that the peer is still sending.
func (p *compat) endMessages() {
	p.desc.CloseWrite()
	p.reply.end()
}

// endTensors tells the peer that no tensors will come either, nor answers.
func (p *compat) endTensors() {
	for _, l := range p.channelConns {
		l.CloseWrite()
	}
}

// connEnded notes that the peer ended the descriptor or reply connection, or
// that it broke.
func (p *compat) connEnded(conn string, err error) {
	if errors.Is(err, io.EOF) {
		p.peerEnded(conn)
		return
	}
	err = classify(err)
	if errors.Is(err, ErrClosed) {
		return // by this end, which knows why
	}
	if !isGone(err) {
		p.fail(p.errorFor("connection", conn, err))
		return
	}
	go func() { p.fail(p.errorFor("connection", conn, p.control.explain(err))) }() // it waits for the peer's reason
}

// channelEnded is what a channel calls when it breaks on its own.
func (p *compat) channelEnded(l *lane, err error) { p.connEnded(p.connName(l), p.lastWord(err)) }

// lastWord is about a channel that still had something to say after endTensors.
// That was in answer to the peer's end, and so that is what ended the channel.
func (p *compat) lastWord(err error) error {
	if errors.Is(err, ErrClosed) && p.Err() == nil {
		return io.EOF
	}
	return err
}

// transferFailed puts the error of one tensor into an *Error. Its message cannot
// be completed, nor, in the compatible dialect, left out: that is the end of
// the pipe, also where the channel could go on. That a peer is gone shows at the
// connections, after what it sent before.
func (p *compat) transferFailed(op string, l *lane, err error) error {
	failed := p.errorFor(op, p.connName(l), classify(midMessage(p.lastWord(err))))
	if !isGone(failed) && !errors.Is(failed, ErrClosed) {
		p.fail(failed)
	}
	return failed
}

// peerEnded notes an orderly end of one connection. A peer that closes ends
// all of them at about the same time; one that leaves the others open has lost
// just this one, and the pipe is of no use any more.
func (p *compat) peerEnded(conn string) {
	p.mu.Lock()
	p.ends--
	first := !p.graceful
	p.graceful = true
	if p.ends == 0 {
		p.stopGrace()
		close(p.allEnded)
	}
	p.mu.Unlock()
	if first {
		p.startGrace(conn, p.in.progress())
	}
}

func (p *compat) stopGrace() {
	if p.grace != nil {
		p.grace.Stop()
	}
}

// graceOver runs when a connection has ended for a while and others have not.
// While the application is slow to take messages in, the end of the descriptor
// connection may stand unread behind them; only a connection that stays silent
// for a whole further period has really been left open.
func (p *compat) graceOver(conn string, before progress) {
	now := p.in.progress()
	switch {
	case now.ended: // the peer closed the pipe; what is left is to be read
		p.out.noMoreReplies()
		if lost := p.out.lost(); lost != nil {
			p.fail(lost) // or not: a write took the error that a read would have seen
		}
	case now.listening && now == before:
		p.fail(p.errorFor("connection", conn, fmt.Errorf("%w: it ended this connection and no other", ErrPeerLost)))
	default:
		p.startGrace(conn, now)
	}
}

func (p *compat) startGrace(conn string, now progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cause == nil && p.ends > 0 {
		p.grace = time.AfterFunc(p.context.opts.CloseTimeout, func() { p.graceOver(conn, now) })
	}
}

// answerClose tells a peer that has ended its messages that this end has nothing
// more to write either. Messages under way are let finish, which the closing end
// discards: to cut them off would end their connections for both directions, and
// what the peer sent before it closed could be lost. A peer that closed first
// answers in its turn; by then its own tensors are through.
func (p *compat) answerClose() {
	select {
	case <-p.out.idle():
		p.endMessages()
		p.endTensors()
	case <-p.down:
	}
}

// connName names the connections of a channel, or, for nil, the descriptor
// connection.
func (p *compat) connName(l *lane) string {
	if l == nil {
		return p.desc.name
	}
	return "channel " + l.name
}

func (p *compat) confirms() bool { return p.control.exists() }

func (p *compat) stats() PipeStats {
	return PipeStats{
		Sent:           p.out.traffic.snapshot(),
		Received:       p.in.traffic.snapshot(),
		BytesInFlight:  p.out.room.own.InUse(),
		BytesReadAhead: p.in.held.InUse(),
		Compression:    CompressionStats{Refused: "the pipe speaks the compatible dialect"},
	}
}

// noteRead is called when a message has been read or discarded.
func (p *compat) noteRead(number uint64) {
	if p.control.exists() {
		p.control.noteRead(number)
	}
}
