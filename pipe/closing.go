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

// start starts the goroutines of the pipe, which run loops. It is called once; the end of the pipe
// waits for it.
func (p *Pipe) start(loops []func()) {
	labels := pprof.Labels("tensorpipe_peer", p.peerName())
	for _, loop := range loops {
		p.running.Go(func() {
			pprof.Do(context.Background(), labels, func(context.Context) { loop() })
		})
	}
	close(p.started)
}

// Close closes the pipe gracefully: messages given to Write before are still sent, messages that
// arrive are discarded, and blocked calls of Next and new calls return ErrClosed. Close waits until
// the peer has read everything and has closed its end; after CloseTimeout it closes the pipe anyway
// and returns an error that matches ErrCloseTimeout. All goroutines of the pipe have ended when
// Close returns. Further calls wait for the first one and return its result.
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

// Abort closes the pipe at once, with a cause that later calls return. Messages that are
// being sent or received are lost. A peer of this library receives the text of the cause
// and adds it to its errors. Abort does not wait until the goroutines of the pipe have
// ended; see Done. A nil cause stands for ErrClosed.
func (p *Pipe) Abort(cause error) { p.fail(cmp.Or(cause, ErrClosed)) }

// fail closes the pipe at once and returns before its goroutines have ended. Only the first cause
// is kept. It takes only p.mu and locks of the control stream, so the caller may hold other locks
// of the pipe.
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

// tearDown ends a pipe that has failed with cause or is being closed, and closes terminated. It
// runs once, on a goroutine of its own.
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

// endError returns the error of Next after the last message. It is the error of the peer's orderly end,
// if there was one, and otherwise the cause of the pipe's failure.
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

// abandon closes ended and wrote because the goroutines of the control stream, which would close
// them, do not start.
func (c *closeFrames) abandon() {
	if !isClosed(c.ended) {
		close(c.ended)
		close(c.wrote)
	}
}

// wakeWriter makes the writer check for frames to send. It does not block.
func (c *closeFrames) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// sendClose queues the close frame, which follows all queued frames and the confirmations of all
// messages that were read. An empty reason means an orderly end. Only the first call has an effect;
// frames that are sent later are dropped. It does not wait until the frame is sent.
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

// peerClose reports whether the peer has sent a close frame, and the reason in it, which is empty
// for an orderly close.
func (c *closeFrames) peerClose() (peerClosed bool, reason string) {
	c.closeMu.Lock()
	defer c.closeMu.Unlock()
	return c.peerClosed, c.peerReason
}

// closeReason returns the reason that a close frame has for a cause: "" for an orderly close,
// else the text of the cause without the peer and connection names of this end.
func closeReason(cause error) string {
	if e, ok := cause.(*Error); ok {
		cause = e.Err
	}
	if cause == ErrClosed {
		return ""
	}
	return strings.ToValidUTF8(cause.Error(), "?")
}

// withReason adds the reason that the peer has given to err. If reason is empty it returns err
// unchanged.
func withReason(err error, reason string) error {
	if reason == "" {
		return err
	}
	return fmt.Errorf("%w: its reason: %q", err, reason)
}

// isClosed reports whether c is closed. It is only for channels on which nothing is sent.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// closedBefore waits until one or other is closed or ctx ends. Then it reports whether one of the two
// channels is closed. Either channel may be nil.
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
