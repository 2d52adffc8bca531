package pipe

import (
	"cmp"
	"context"
	"fmt"
	"runtime/pprof"
	"strings"
	"sync"
	"time"
)

// start runs each function of loops on a goroutine of its own, labelled for pprof with the peer's
// name, and closes p.started. It does not wait for the functions. The end of the pipe waits until
// all of them have returned. start is called once.
func (p *Pipe) start(loops []func()) {
	labels := pprof.Labels("tensorpipe_peer", p.peerName())
	for _, loop := range loops {
		p.running.Go(func() {
			pprof.Do(context.Background(), labels, func(context.Context) { loop() })
		})
	}
	close(p.started)
}

// Close closes the pipe gracefully. Messages that were given to Write before are still sent, and
// messages that arrive are discarded. Blocked calls of Next and new calls return errors that match
// ErrClosed. Close waits until these messages are sent, the peer has read those of their parts
// that were sent before it asked for them (see Options.NoEager), and the peer has closed its end, or
// until the pipe has failed, and returns nil. If that takes longer than Options.CloseTimeout, Close
// closes the pipe anyway and returns an error that matches ErrCloseTimeout: messages that the peer
// has not read may be lost.
//
// All goroutines that run the pipe have ended when Close returns. Further calls wait for the first
// one and return its result.
func (p *Pipe) Close() error {
	if !p.closeCalled.CompareAndSwap(false, true) {
		<-p.closed
		return p.closeErr
	}
	defer close(p.closed)
	close(p.closing)
	p.sender.reject(p.errorFor("write", "", ErrClosed))
	ctx, cancel := context.WithTimeout(context.Background(), p.context.opts.CloseTimeout)
	defer cancel()
	var drain sync.WaitGroup
	drain.Go(p.engine.drain)
	err := p.engine.finishWriting(ctx)
	if err == nil && !closedBefore(ctx, p.peerEnded, p.down) {
		err = fmt.Errorf("%w: the peer has not closed its end", ErrCloseTimeout)
	}
	p.fail(ErrClosed)
	drain.Wait()
	<-p.terminated
	if err != nil {
		p.closeErr = p.errorFor("close", "", err)
	}
	return p.closeErr
}

// Abort closes the pipe at once. Later calls fail with errors that match cause, except that Next
// may first return messages that have been received; if cause is nil, ErrClosed takes its place. If
// the pipe has already ended, Abort has no effect. Messages that are being sent or received are
// lost. A peer of this library receives the text of cause and adds it to its errors. Abort does not
// wait until the goroutines of the pipe have ended; see Done.
func (p *Pipe) Abort(cause error) { p.fail(cmp.Or(cause, ErrClosed)) }

// fail ends the pipe with cause: it stores cause in p.cause, queues a close frame for cause unless
// one is queued, closes p.down, and starts tearDown on a new goroutine, for which it does not wait.
// If the pipe has a cause already, fail does nothing. It takes only p.mu and locks of the control
// stream, so the caller may hold other locks of the pipe.
func (p *Pipe) fail(cause error) {
	p.mu.Lock()
	first := p.cause == nil
	p.cause = cmp.Or(p.cause, cause)
	p.mu.Unlock()
	if first {
		p.engine.sendClose(cause) // before the peer can notice, and before writes count as flushed
		close(p.down)
		go p.tearDown(cause)
	}
}

// tearDown releases everything that a pipe holds, after the pipe has failed with cause or was
// closed. It waits until p.started is closed, reports a lost peer, makes unfinished writes fail
// with cause, closes the connections and channels, and waits for the goroutines of the pipe. Then
// it closes the pipe's account of received memory, removes p from the Context and closes
// p.terminated. It runs once, on a goroutine of its own.
func (p *Pipe) tearDown(cause error) {
	<-p.started
	p.reportLost(cause)
	p.engine.stopWriting(p.errorFor("write", "", cause)) // before writes fail because connections are closed
	p.engine.disconnect(cause)
	p.account.Close()
	p.context.unregister(p)
	close(p.terminated)
}

// isClosing reports whether Close was called.
func (p *Pipe) isClosing() bool { return isClosed(p.closing) }

// endError returns the error that Next returns after the last message: the error of the peer's
// orderly end if the peer has ended the pipe, and otherwise the cause of the pipe's failure. It
// returns nil while the pipe has neither. It locks p.mu.
func (p *Pipe) endError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return cmp.Or(p.end, p.cause)
}

// closeFrames has the state of the control stream, or control connection, that both dialects share:
// the confirmations that precede the close frame of this end, and the close frames of both ends.
type closeFrames struct {
	confirmer
	wake  chan struct{} // has a token when the writer must check for frames
	wrote chan struct{} // closed when the writer has ended
	ended chan struct{} // closed when the reader has ended

	closeMu    sync.Mutex // held while the writer takes frames, so that none follows the close frame
	ownReason  *string    // of this end's close frame, the last one to be sent; nil without one
	peerClosed bool       // the peer has sent its close frame
	peerReason string     // the reason in it
}

func (c *closeFrames) init(p *Pipe) {
	c.wake = make(chan struct{}, 1)
	c.wrote = make(chan struct{})
	c.ended = make(chan struct{})
	c.confirmer.init(c.wakeWriter, p.account)
	p.closeFrames = c
}

// abandon closes c.ended and c.wrote, which the goroutines of the control stream close otherwise.
// It is called when these goroutines do not start. A second call does nothing.
func (c *closeFrames) abandon() {
	if !isClosed(c.ended) {
		close(c.ended)
		close(c.wrote)
	}
}

// wakeWriter wakes the goroutine that writes control frames, so that it checks for frames to send.
// It does not block.
func (c *closeFrames) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// sendClose queues the close frame of this end with reason; an empty reason means an orderly end.
// It does not wait until the frame is sent. The writer first sends the frames that are queued
// already and the confirmations of all messages that were read. Frames that are queued later may be
// dropped. If sendClose was called before, the first reason stays.
func (c *closeFrames) sendClose(reason string) {
	c.confirmer.mu.Lock()
	c.confirmable = c.read // requests of the peer may still be on their way
	c.confirmer.mu.Unlock()
	c.closeMu.Lock()
	c.ownReason = cmp.Or(c.ownReason, &reason)
	c.closeMu.Unlock()
	c.wakeWriter()
}

// receiveClose records that the peer has sent its close frame, with reason.
func (c *closeFrames) receiveClose(reason string) {
	c.closeMu.Lock()
	defer c.closeMu.Unlock()
	c.peerClosed, c.peerReason = true, reason
}

// peerClose reports whether the peer has sent a close frame, and returns the reason in that frame.
// The reason is empty for an orderly close, and if there was no close frame.
func (c *closeFrames) peerClose() (peerClosed bool, reason string) {
	c.closeMu.Lock()
	defer c.closeMu.Unlock()
	return c.peerClosed, c.peerReason
}

// closeReason returns the text that a close frame carries for cause: "" if cause is ErrClosed,
// itself or in an *Error, and otherwise the text of cause. For an *Error that is the text of its
// Err field, without the peer and connection names of this end. Bytes that are not valid UTF-8 are
// replaced by "?".
func closeReason(cause error) string {
	if e, ok := cause.(*Error); ok {
		cause = e.Err
	}
	if cause == ErrClosed {
		return ""
	}
	return strings.ToValidUTF8(cause.Error(), "?")
}

// withReason returns an error that wraps err and adds the text reason, which the peer has sent. If
// reason is empty it returns err unchanged.
func withReason(err error, reason string) error {
	if reason == "" {
		return err
	}
	return fmt.Errorf("%w: its reason: %q", err, reason)
}

// isClosed reports whether the Go channel c is closed, without blocking. It is false for nil.
// isClosed must not be used on a Go channel on which values are sent, because it may receive one.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// closedBefore blocks until at least one of the two Go channels is closed or ctx ends. It returns
// true if at least one of them is closed by then, and false if ctx has ended first. A nil Go
// channel counts as open.
func closedBefore(ctx context.Context, one, other <-chan struct{}) bool {
	select {
	case <-one:
		return true
	case <-other:
		return true
	case <-ctx.Done():
		return isClosed(one) || isClosed(other)
	}
}

// closeFrameTimeout bounds how long the end of a pipe waits for the peer's close frame, which is
// sent on a connection of its own and arrives at about the same time.
const closeFrameTimeout = time.Second
