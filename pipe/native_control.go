package pipe

import (
	"bufio"
	"context"
	"io"

	"github.com/tensorpipe-go/tensorpipe/internal/native"
	"github.com/tensorpipe-go/tensorpipe/internal/quota"
	"github.com/tensorpipe-go/tensorpipe/transport"
)

const (
	// controlBuffer is the size of the read buffer of the control stream.
	controlBuffer = 512

	// maxQueuedControl bounds the queued control frames, in bytes; beyond it the pipe fails,
	// because the peer does not read. TARGETS and READY frames do not count: a Read waits before it
	// enqueues more of them.
	maxQueuedControl = 4 << 20

	// controlHighWater is the queue length in bytes from which on a Read waits, and ABORT frames
	// lose their reasons.
	controlHighWater = 256 << 10
)

// nativeControl sends and receives the frames of the control stream. Frames to be sent are queued;
// a goroutine of the pipe writes them.
type nativeControl struct {
	pipe   *nativePipe
	stream transport.Stream
	closeFrames

	// Guarded by closeMu.
	queued      []byte
	spare       []byte
	memoryBytes int           // bytes of TARGETS and READY frames in queued
	drained     chan struct{} // made by awaitQueueSpace, closed when the writer takes the queue
	closeTaken  bool          // the writer has taken the close frame
}

func (c *nativeControl) init(p *nativePipe) {
	c.pipe = p
	c.closeFrames.init(p.Pipe)
}

// sendReady enqueues a READY frame. To the peer it means that this end has memory for the transfer
// id of a lane of the bulk mover. sendReady does not block. If the queue is too long, because the
// peer does not read, it fails the pipe.
func (c *nativeControl) sendReady(lane uint16, id uint64) {
	c.send(&native.Control{Kind: native.Ready, Lane: lane, Number: id})
}

func (c *nativeControl) sendCancel(number uint64) {
	c.send(&native.Control{Kind: native.Cancel, Number: number})
}

func (c *nativeControl) sendCredit(bytes int) {
	c.send(&native.Control{Kind: native.Credit, Number: uint64(bytes)})
}

func (c *nativeControl) sendBulk() { c.send(&native.Control{Kind: native.Bulk}) }

// send encodes m and enqueues the frame. Once this end's close frame is enqueued, it drops m. If
// the queue is too long, because the peer does not read, it fails the pipe. It does not block, and
// does not keep m.
func (c *nativeControl) send(m *native.Control) {
	if !c.enqueue(m) {
		c.pipe.fail(c.pipe.errorFor("connection", "control", protocolError("it does not read its control stream")))
	}
}

// enqueue encodes m at the end of the queue, wakes the writer and reports true. If the queue is too
// long, because the peer does not read, it adds nothing and reports false. Once this end's close
// frame is enqueued, it drops m and reports true. An ABORT frame loses its text if the queue is
// longer than controlHighWater. enqueue does not keep m.
func (c *nativeControl) enqueue(m *native.Control) bool {
	c.closeMu.Lock()
	defer c.closeMu.Unlock()
	if c.ownReason != nil {
		return true
	}
	before := len(c.queued)
	if before-c.memoryBytes > maxQueuedControl {
		return false
	}
	if m.Kind == native.Abort && before > controlHighWater {
		m = &native.Control{Kind: native.Abort, Number: m.Number}
	}
	c.appendFrame(m)
	if m.Kind == native.Targets || m.Kind == native.Ready {
		c.memoryBytes += len(c.queued) - before
	}
	c.wakeWriter()
	return true
}

// appendFrame encodes m at the end of c.queued and charges its bytes to the pipe's account of the
// quota Limits.UnadmittedBytes, without waiting for the quota. It does not wake the writer. The
// caller holds closeMu.
func (c *nativeControl) appendFrame(m *native.Control) {
	before := len(c.queued)
	c.queued = m.Append(c.queued, c.pipe.context.opts.Checksum)
	c.pipe.account.Add(len(c.queued) - before)
}

// awaitQueueSpace blocks while more than controlHighWater bytes are queued. If ctx ends first, it
// returns the cause of ctx; if the pipe ends first, the error of the pipe. A Read calls it before
// it enqueues TARGETS and READY frames.
func (c *nativeControl) awaitQueueSpace(ctx context.Context) error {
	for {
		c.closeMu.Lock()
		if len(c.queued) <= controlHighWater {
			c.closeMu.Unlock()
			return nil
		}
		if c.drained == nil {
			c.drained = make(chan struct{})
		}
		drained := c.drained
		c.closeMu.Unlock()
		select {
		case <-drained:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.pipe.down:
			return c.pipe.Err()
		}
	}
}

// write writes the queued frames to the control stream until it has written the close frame or the
// stream fails. After the close frame it closes the stream for writing. At its end it closes the
// channel c.wrote. It reports no error: read gets the error of the stream too. It runs on a
// goroutine of the pipe.
func (c *nativeControl) write() {
	defer close(c.wrote)
	for {
		text, last := c.take()
		if len(text) == 0 {
			<-c.wake
			continue
		}
		if _, err := c.stream.Write(text); err != nil {
			return // the reader reports the error
		}
		c.pipe.account.Release(len(text))
		if last {
			c.stream.CloseWrite()
			return
		}
	}
}

// take empties the queue and returns its frames as bytes; none if there is nothing to write. It
// first enqueues the confirmation of messages that this end has read, if one is due, and requests
// for the confirmations that this end's WriteConfirmed calls wait for. After sendClose it enqueues
// the close frame, once, and no requests. last is true once the close frame has been taken. text is
// valid until the next call, because two buffers alternate. take wakes the callers of
// awaitQueueSpace.
func (c *nativeControl) take() (text []byte, last bool) {
	c.closeMu.Lock()
	defer c.closeMu.Unlock()
	if n, ok := c.nextConfirmation(); ok { // under the lock, so that the close frame follows it
		c.appendFrame(&native.Control{Kind: native.HaveRead, Number: n})
	}
	for ok := true; ok && c.ownReason == nil; {
		var n uint64
		if n, ok = c.nextQuery(); ok {
			c.appendFrame(&native.Control{Kind: native.WantRead, Number: n})
		}
	}
	if c.ownReason != nil && !c.closeTaken {
		c.closeTaken = true
		c.appendFrame(&native.Control{Kind: native.Goodbye, Text: *c.ownReason})
	}
	text = c.queued
	c.queued, c.spare, c.memoryBytes = c.spare[:0], text, 0
	c.spare = kept(c.spare)
	if c.drained != nil {
		close(c.drained)
		c.drained = nil
	}
	return text, c.closeTaken
}

// read receives and handles the peer's frames until the close frame or an error, and then closes
// the channel c.ended. If an error comes before the close frame, it starts a goroutine with
// streamFailed, which ends the pipe. It runs on a goroutine of the pipe.
func (c *nativeControl) read() {
	defer close(c.ended)
	src := bufio.NewReaderSize(c.stream, controlBuffer)
	var header [native.HeaderSize]byte
	var body []byte
	var m native.Control
	held := c.pipe.newCharge()
	for {
		err := c.readFrame(src, header[:], &body, &m, &held)
		if err == nil {
			err = c.handle(&m)
		}
		if err == nil {
			body, m = kept(body), native.Control{}
			held.shrink(cap(body))
			continue
		}
		if peerClosed, _ := c.peerClose(); !peerClosed {
			go c.pipe.streamFailed("control", err)
		}
		return
	}
}

func (c *nativeControl) readFrame(src *bufio.Reader, header []byte, buf *[]byte, m *native.Control, held *charge) error {
	if _, err := io.ReadFull(src, header); err != nil {
		return err
	}
	limits := c.pipe.context.limits.native()
	h, err := native.DecodeControlHeader(header, limits)
	if err != nil {
		return nativeError(err)
	}
	if *buf, err = readGrowing(src, (*buf)[:0], h.Remaining(), held, 0); err != nil {
		return midMessage(err)
	}
	body, err := h.Body(*buf)
	if err == nil {
		*m, err = native.DecodeControl(native.ControlKind(h.Kind), body, limits)
	}
	if err != nil {
		return nativeError(err)
	}
	return nil
}

// handle acts on m, a frame of the peer. It returns nil, except that it returns io.EOF for a close
// frame, and an error that matches ErrProtocol for a frame that must not come now. A close frame
// with a reason fails the pipe. After a close frame without a reason, further writes are rejected
// and all transfers to the peer are cancelled; messages that are inline are still written, and
// received messages can be read. handle does not keep m.
func (c *nativeControl) handle(m *native.Control) error {
	p := c.pipe
	switch m.Kind {
	case native.WantRead:
		return c.handleRequest(m.Number)
	case native.HaveRead:
		c.handleConfirmation(m.Number)
	case native.Targets:
		return p.out.handleTargets(m)
	case native.Abort:
		return p.in.handleAbort(m.Number, m.Text)
	case native.Cancel:
		p.out.handleCancel(m.Number)
	case native.Ready:
		p.mover.HandleReady(m.Lane, m.Number)
	case native.Bulk:
		p.bulk.once.Do(func() { close(p.bulk.stream) })
	case native.Credit, native.WantCredit:
		return p.handleCredit(m)
	case native.Goodbye:
		c.receiveClose(m.Text)
		end := p.errorFor("connection", "control", withReason(ErrPeerClosed, m.Text))
		if m.Text != "" {
			p.fail(end)
			return io.EOF
		}
		p.sender.reject(p.errorFor("write", "control", end))
		p.out.cancelAll()
		p.mover.ForgetCredit()
		p.in.resumeLoop() // to read the end of the message stream, which the peer expects answered
		return io.EOF
	}
	return nil
}

// handleCredit acts on m, a frame about credit for eager transfers. The error matches ErrProtocol.
func (p *nativePipe) handleCredit(m *native.Control) error {
	switch {
	case !p.eager:
		return protocolError("%s, without eager transfers", m.Kind)
	case m.Kind == native.WantCredit:
		p.mover.HandleWantCredit()
		return nil
	}
	if err := p.mover.HandleCredit(m.Number); err != nil {
		return protocolError("%w", err)
	}
	return nil
}

func (p *nativePipe) awaitRead(ctx context.Context, number uint64) error {
	confirmed, err := p.control.await(ctx, number, p.control.ended, p.down)
	switch {
	case confirmed:
		return nil
	case err != nil:
		return p.unconfirmed("", err)
	case p.isClosing():
		return p.unconfirmed("", ErrClosed)
	default:
		return p.unconfirmed("control", p.sessionError(io.EOF))
	}
}

const (
	// maxEarlyAborts bounds the aborts that precede their messages. It is far more than the
	// messages that can be in flight.
	maxEarlyAborts = 1 << 16

	// maxEarlyReasons bounds the bytes of the reasons kept for them. Further reasons are dropped.
	maxEarlyReasons = 64 << 10
)

// earlyAborts holds the aborts that have arrived before their messages, by number. It is guarded by
// nativeReader.mu.
type earlyAborts struct {
	reasons map[uint64]string
	text    int // bytes of the reasons
	account *quota.Account
}

// add stores the abort of the message with this number, which has not arrived. Only the first abort
// of a message counts. If there are too many aborts, the error matches ErrProtocol. If the stored
// reasons together would be too long, the abort is stored without its reason. The caller holds
// nativeReader.mu.
func (e *earlyAborts) add(number uint64, reason string) error {
	if _, again := e.reasons[number]; again {
		return nil
	}
	if len(e.reasons) >= maxEarlyAborts {
		return protocolError("%w", limitError("messages aborted before they came", maxEarlyAborts+1, maxEarlyAborts))
	}
	if len(reason) > maxEarlyReasons-e.text {
		reason = ""
	}
	if e.reasons == nil {
		e.reasons = map[uint64]string{}
	}
	e.reasons[number] = reason
	e.text += len(reason)
	e.account.Add(entryMemory + len(reason))
	return nil
}

// take removes the stored abort of the message with this number and returns it as an error that
// matches ErrAborted, with the peer's reason. If there is none it returns nil. The caller holds
// nativeReader.mu.
func (e *earlyAborts) take(number uint64) error {
	reason, ok := e.reasons[number]
	if !ok {
		return nil
	}
	delete(e.reasons, number)
	e.text -= len(reason)
	e.account.Release(entryMemory + len(reason))
	return withReason(ErrAborted, reason)
}
